#include "agent/machine/mount_info.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::agent {
namespace {

// Space, tab, newline and backslash are written as \ooo.
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

bool LiesOn(absl::string_view point, absl::string_view path) {
  if (point == "/") return true;
  return absl::ConsumePrefix(&path, point) && (path.empty() || path[0] == '/');
}

}  // namespace

std::vector<Mount> ParseMounts(absl::string_view mountinfo) {
  std::vector<Mount> mounts;
  for (const absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> left = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> right = absl::StrSplit(halves.second, ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    mounts.push_back({.root = Unescape(left[3]),
                      .point = Unescape(left[4]),
                      .type = std::string(right[0]),
                      .options = std::string(right[2])});
  }
  return mounts;
}

std::optional<Mount> MountOf(absl::string_view mountinfo, absl::string_view path) {
  std::optional<Mount> found;
  for (Mount& mount : ParseMounts(mountinfo)) {
    const bool is_inner = !found || mount.point.size() >= found->point.size();
    if (is_inner && LiesOn(mount.point, path)) found = std::move(mount);
  }
  return found;
}

}  // namespace muster::agent
