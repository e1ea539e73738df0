#include "agent/machine/control_group.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::agent {
namespace {

struct CgroupMount {
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
};

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size()) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                    (text[i + 3] - '0')));
    i += 3;
  }
  return out;
}

bool HasWord(absl::string_view list, absl::string_view word) {
  const std::vector<absl::string_view> words = absl::StrSplit(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// `controller` empty: the v2 hierarchy.
std::optional<CgroupMount> FindMount(absl::string_view mountinfo, absl::string_view controller) {
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> left = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> right = absl::StrSplit(halves.second, ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool matches = controller.empty() ? right[0] == "cgroup2"
                                            : right[0] == "cgroup" && HasWord(right[2], controller);
    if (matches) return CgroupMount{Unescape(left[3]), Unescape(left[4])};
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
std::string DirectoryOf(const CgroupMount& mount, absl::string_view group) {
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
