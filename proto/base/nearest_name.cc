#include "proto/base/nearest_name.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kMinPrefixBytes = 3;
constexpr size_t kMaxNameBytes = 128;

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view given, const std::vector<std::string>& known) {
  if (given.size() > kMaxNameBytes) return "";
  std::string nearest;
  size_t smallest = std::max<size_t>(2, given.size() / 4) + 1;
  for (const std::string& name : known) {
    const size_t distance = EditDistance(given, name);
    if (distance < smallest && distance < given.size()) {
      smallest = distance;
      nearest = name;
    }
  }
  if (!nearest.empty() || given.size() < kMinPrefixBytes) return nearest;
  const auto longer = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
    return absl::StartsWith(name, given);
  });
  return longer == known.end() ? "" : *longer;
}

std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(given, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

}  // namespace muster
