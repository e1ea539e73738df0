// The command line of all_reduce_perf: nccl-tests' options, by their letters and their names.
//
// Threads: pure.
// Source: nccl-tests 2.19.6, README "Arguments". Differs in: sizes are multiplied by 2 where
// neither an increment nor a factor is given, since increments of 1M take minutes on CPUs; an
// option that only GPUs have is refused unless it is off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "muster/dtype.h"

namespace muster::perf {

// How the time of an operation is made from those of the ranks.
enum class Average { kRankZero, kMean, kMin, kMax };

struct PerfOptions {
  int64_t bytes_min = 32 << 20;
  int64_t bytes_max = 32 << 20;
  int64_t step_bytes = 0;  // 0: by factor
  int64_t step_factor = 2;
  int iterations = 20;
  int warm_up = 1;
  int ranks_per_process = 1;  // -g times -t
  bool checks = true;
  Average average = Average::kMean;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::string backend = "gloo";
  std::string help;  // not empty: to be printed instead of running

  // The sizes in bytes, each a whole number of elements.
  std::vector<int64_t> Sizes() const;
};

// Errors: kInvalidArgument naming the option, its value and what was expected.
absl::StatusOr<PerfOptions> ParsePerfOptions(const std::vector<std::string>& args);

// nccl-tests' names.
std::string NameOf(DType dtype);
std::string NameOf(ReduceOp op);

// Whether this process is a rank, or starts so many under `muster run`, as a bare `-g 4` asks:
// nccl-tests drives 4 GPUs from one process, and here each rank is a process. `world_size` and
// `local_size` are those of the job that this process is in; 0: none.
//
// Errors: kInvalidArgument: in a job whose nodes do not have as many ranks.
struct Start {
  int ranks = 0;  // to start; 0: this process is one
};
absl::StatusOr<Start> DecideStart(const PerfOptions& options, int world_size, int local_size);

}  // namespace muster::perf
