#include "worker_runtime/train/machine.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker_runtime/train/figures.h"

namespace muster::train {
namespace {

// Parameters, gradients and two moments; of 16 bits with a master, all but the parameters in f32.
double BytesPerParameter(DType dtype) {
  const double parameter = static_cast<double>(SizeOf(dtype));
  return parameter < 4 ? parameter + 4 * 4 : 4 * parameter;
}

}  // namespace

int64_t ResidentBytes(absl::string_view proc_status) {
  for (absl::string_view line : absl::StrSplit(proc_status, '\n')) {
    if (!absl::ConsumePrefix(&line, "VmRSS:") || !absl::ConsumeSuffix(&line, "kB")) continue;
    int64_t kibibytes = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kibibytes)) return kibibytes * 1024;
  }
  return 0;
}

int64_t OwnResidentBytes() {
  std::ifstream file("/proc/self/status");
  return ResidentBytes(std::string(std::istreambuf_iterator<char>(file), {}));
}

int64_t MachineBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return std::numeric_limits<int64_t>::max();
  return pages * page_bytes;
}

absl::Status CheckFitsMachine(const GptConfig& model, DType dtype, int local_size,
                              int64_t machine_bytes) {
  const double parameters = static_cast<double>(model.num_parameters());
  const double rank_bytes = parameters * BytesPerParameter(dtype);
  if (rank_bytes * local_size <= static_cast<double>(machine_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a model of ", ShortCount(parameters), " parameters needs ", ShortBytes(rank_bytes),
      " per rank before any activation, ", ShortBytes(rank_bytes * local_size), " for the ",
      Counted(local_size, "rank"), " of this machine, which has ", ShortBytes(machine_bytes),
      "; choose fewer layers or a smaller hidden size"));
}

absl::Status CheckStepFitsMachine(int64_t rank_bytes, int local_size, int64_t machine_bytes) {
  const double all_bytes = static_cast<double>(rank_bytes) * local_size;
  if (all_bytes <= static_cast<double>(machine_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a step needs ", ShortBytes(static_cast<double>(rank_bytes)), " per rank, ",
                   ShortBytes(all_bytes), " for the ", Counted(local_size, "rank"),
                   " of this machine, which has ", ShortBytes(static_cast<double>(machine_bytes)),
                   "; choose a smaller --batch_size or --context, or a smaller model"));
}

}  // namespace muster::train
