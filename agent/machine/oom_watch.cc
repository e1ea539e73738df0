#include "agent/machine/oom_watch.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/machine/control_group.h"
#include "proto/io/read_file.h"

namespace muster::agent {

std::optional<int64_t> ParseOomKills(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return std::nullopt;
}

std::string FindOomKillFile(absl::string_view cgroup, absl::string_view mountinfo) {
  if (const auto group = FindControlGroup(cgroup, mountinfo, "memory")) {
    return group->directory + "/memory.oom_control";
  }
  const auto unified = FindControlGroup(cgroup, mountinfo, "");
  return unified ? unified->directory + "/memory.events" : "";
}

OomWatch OomWatch::Open() {
  return OomWatch(FindOomKillFile(TextOf("/proc/self/cgroup"), TextOf("/proc/self/mountinfo")));
}

std::optional<int64_t> OomWatch::Count() const {
  if (path_.empty()) return std::nullopt;
  return ParseOomKills(TextOf(path_));
}

bool OomWatch::HasNewKills() {
  const std::optional<int64_t> now = Count();
  const bool has_new = now && told_ && *now > *told_;
  if (has_new) told_ = now;
  return has_new;
}

}  // namespace muster::agent
