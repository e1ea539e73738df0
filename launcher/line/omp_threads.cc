#include "launcher/line/omp_threads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::launcher {

ThreadDecision DecideOmpThreads(const OmpThreads& asked, int num_workers, const NodeCpus& cpus,
                                bool is_inherited) {
  const int share = std::max(cpus.num_cpus / std::max(num_workers, 1), 1);
  switch (asked.kind) {
    case OmpThreads::Kind::kCount:
      return {.threads = asked.count};
    case OmpThreads::Kind::kShare:
      return {.threads = share};
    case OmpThreads::Kind::kUntouched:
      return {};
    case OmpThreads::Kind::kUsual:
      break;
  }
  if (is_inherited) return {};
  if (cpus.are_counted) return {.threads = share};
  if (num_workers < 2) return {};
  if (share < 2) return {.threads = 1};
  return {
      .threads = 1,
      .note = absl::StrCat("each of the ", num_workers,
                           " workers gets OMP_NUM_THREADS=1; the CPUs of this node would allow ",
                           share, " (--omp_threads=auto)")};
}

}  // namespace muster::launcher
