#include "agent/machine/cpu_quota.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/machine/control_group.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

// Microseconds of CPU time in each period of that many; words instead of a quota mean none.
std::optional<int> CpusOf(absl::string_view quota_text, absl::string_view period_text) {
  int64_t quota = 0;
  int64_t period = 0;
  if (!absl::SimpleAtoi(quota_text, &quota) || !absl::SimpleAtoi(period_text, &period)) {
    return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::min<int64_t>((quota - 1) / period + 1, 1 << 20));
}

std::optional<int> QuotaIn(const std::string& directory, bool is_v1,
                           const std::function<std::string(const std::string& path)>& read) {
  if (is_v1) {
    return CpusOf(read(directory + "/cpu.cfs_quota_us"), read(directory + "/cpu.cfs_period_us"));
  }
  const std::string max = read(directory + "/cpu.max");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(max, absl::MaxSplits(' ', 1));
  return CpusOf(parts.first, parts.second);
}

int CountCpusOfAffinity() {
  // The kernel refuses a set that is smaller than its own.
  for (int num_cpus = 1024; num_cpus <= 1 << 20; num_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool ok = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(count, 1);
  }
  return std::max(::get_nprocs(), 1);
}

}  // namespace

std::optional<int> FindCpuQuota(absl::string_view cgroup, absl::string_view mountinfo,
                                const std::function<std::string(const std::string& path)>& read) {
  std::optional<ControlGroup> group = FindControlGroup(cgroup, mountinfo, "cpu");
  const bool is_v1 = group.has_value();
  if (!is_v1) group = FindControlGroup(cgroup, mountinfo, "");
  if (!group) return std::nullopt;
  std::optional<int> smallest;
  std::string directory = group->directory;
  while (true) {
    if (const std::optional<int> quota = QuotaIn(directory, is_v1, read)) {
      smallest = smallest ? std::min(*smallest, *quota) : *quota;
    }
    if (directory.size() <= group->mount.size()) return smallest;
    directory.resize(directory.rfind('/'));
  }
}

int CountCpus() {
  const int affinity = CountCpusOfAffinity();
  const std::optional<int> quota =
      FindCpuQuota(TextOf("/proc/self/cgroup"), TextOf("/proc/self/mountinfo"),
                   [](const std::string& path) { return TextOf(path); });
  return quota ? std::min(affinity, *quota) : affinity;
}

}  // namespace muster::agent
