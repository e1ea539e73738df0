#include "agent/machine/control_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/machine/mount_info.h"

namespace muster::agent {
namespace {

bool HasWord(absl::string_view list, absl::string_view word) {
  const std::vector<absl::string_view> words = absl::StrSplit(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// `controller` empty: the v2 hierarchy.
std::optional<Mount> FindMount(absl::string_view mountinfo, absl::string_view controller) {
  for (Mount& mount : ParseMounts(mountinfo)) {
    const bool matches = controller.empty()
                             ? mount.type == "cgroup2"
                             : mount.type == "cgroup" && HasWord(mount.options, controller);
    if (matches) return std::move(mount);
  }
  return std::nullopt;
}

// `controller` empty: the v2 hierarchy.
std::optional<std::string> FindGroup(absl::string_view cgroup, absl::string_view controller) {
  for (absl::string_view line : absl::StrSplit(cgroup, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool matches =
        controller.empty() ? fields[0] == "0" && fields[1].empty() : HasWord(fields[1], controller);
    if (matches) return std::string(fields[2]);
  }
  return std::nullopt;
}

// In a container the mount may show less of the hierarchy than the group's path names, or another
// part of it.
std::string DirectoryOf(const Mount& mount, absl::string_view group) {
  if (mount.root != "/" && !absl::ConsumePrefix(&group, mount.root)) group = "";
  if (absl::StartsWith(group, "/..")) group = "";
  return absl::StrCat(mount.point, absl::StripSuffix(group, "/"));
}

}  // namespace

std::optional<ControlGroup> FindControlGroup(absl::string_view cgroup, absl::string_view mountinfo,
                                             absl::string_view controller) {
  const auto group = FindGroup(cgroup, controller);
  const auto mount = FindMount(mountinfo, controller);
  if (!group || !mount) return std::nullopt;
  return ControlGroup{.mount = mount->point, .directory = DirectoryOf(*mount, *group)};
}

}  // namespace muster::agent
