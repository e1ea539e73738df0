// The figures of a node, its ranks and its GPUs, as `muster top` shows them. -1, or an empty text:
// not known.
//
// Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::status {

inline constexpr int kFiguresSchema = 1;

struct NodeFigures {
  int cpus = 0;
  double cpu_percent = -1;  // of all its CPUs, by all programs
  int64_t memory_used_mib = -1;
  int64_t memory_mib = -1;
};

struct RankFigures {
  int rank = 0;
  int pid = 0;  // 0: it has ended
  std::string phase;
  int64_t step = -1;
  double silent_seconds = -1;
  double waited_seconds = -1;  // for other ranks since its start; of programs that tell their waits
  double cpu_percent = -1;     // of one CPU, with what the worker has started
  int64_t memory_mib = -1;
  std::string doing;
  std::vector<int> gpus;  // indices of those that it uses
};

struct GpuFigures {
  int index = 0;
  std::string pci_address;
  std::string name;
  int busy_percent = -1;
  int64_t memory_used_mib = -1;
  int64_t memory_mib = -1;
  double power_watts = -1;
  int celsius = -1;
  int sm_mhz = -1;
  std::string slowed_by;  // why its clocks are lower than they could be: "power", "heat"
  std::string fault;      // an Xid of the round, or what its driver says that it needs
};

struct FiguresOfNode {
  int schema = kFiguresSchema;
  NodeFigures node;
  std::vector<RankFigures> ranks;
  std::vector<GpuFigures> gpus;
};

// Leaves out what ranks do, then GPUs and ranks from the end, until it fits as JSON.
void FitFigures(size_t bytes_max, FiguresOfNode& figures);

std::string ToJson(const FiguresOfNode& figures);
// Errors: kInvalidArgument: as ParseStatusPage.
absl::StatusOr<FiguresOfNode> ParseFigures(absl::string_view json);

}  // namespace muster::status
