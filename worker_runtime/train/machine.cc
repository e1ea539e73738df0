#include "worker_runtime/train/machine.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/io/read_file.h"
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

int64_t OwnResidentBytes() { return ResidentBytes(TextOf("/proc/self/status")); }

int64_t ControlGroupBytes(absl::string_view proc_cgroup,
                          absl::FunctionRef<std::string(const std::string& path)> read) {
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto look = [&](absl::string_view root, std::string path, absl::string_view file) {
    // A group's limit holds for those below it.
    for (;;) {
      if (path == "/") path.clear();
      int64_t bytes = 0;  // "max" is no number
      const std::string text = read(absl::StrCat(root, path, "/", file));
      if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes) && bytes > 0) {
        least = std::min(least, bytes);
      }
      if (path.empty()) return;
      path.resize(path.rfind('/'));
    }
  };
  for (const absl::string_view line : absl::StrSplit(proc_cgroup, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    if (parts[0] == "0" && parts[1].empty()) look("/sys/fs/cgroup", parts[2], "memory.max");
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller != "memory") continue;
      look("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes");
    }
  }
  return least;
}

int64_t MachineBytes() {
  const int64_t allowed = ControlGroupBytes(TextOf("/proc/self/cgroup"),
                                            [](const std::string& path) { return TextOf(path); });
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return allowed;
  return std::min(allowed, pages * page_bytes);
}

absl::Status CheckFitsMachine(const DecoderConfig& model, DType dtype, int local_size,
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

}  // namespace muster::train
