#include "proto/base/words.h"

#include <cmath>

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

std::string InWords(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 1) return absl::StrFormat("%.0fms", seconds * 1e3);
  if (seconds < 10) return absl::StrFormat("%gs", std::round(seconds * 10) / 10);
  return absl::StrFormat("%.0fs", seconds);
}

}  // namespace muster
