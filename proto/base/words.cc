#include "proto/base/words.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace muster {

std::string NamesInWords(absl::Span<const std::string> names, int count) {
  const int more = count - static_cast<int>(names.size());
  if (more > 0) return absl::StrCat(absl::StrJoin(names, ", "), " and ", more, " more");
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.first(names.size() - 1), ", "), " and ", names.back());
}

std::string RanksInWords(absl::Span<const int> ranks) {
  constexpr size_t kRunsMax = 6;
  std::vector<std::string> runs;
  size_t named = 0;
  for (size_t begin = 0; begin < ranks.size() && runs.size() < kRunsMax;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) --end;  // "0 and 1" reads better than "0-1"
    runs.push_back(end - begin > 1 ? absl::StrCat(ranks[begin], "-", ranks[end - 1])
                                   : absl::StrCat(ranks[begin]));
    named += end - begin;
    begin = end;
  }
  const size_t untold = ranks.size() - named;
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      NamesInWords(runs, static_cast<int>(runs.size() + untold)));
}

std::string InWords(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 1) return absl::StrFormat("%.0fms", seconds * 1e3);
  if (seconds < 10) return absl::StrFormat("%gs", std::round(seconds * 10) / 10);
  return absl::StrFormat("%.0fs", seconds);
}

}  // namespace muster
