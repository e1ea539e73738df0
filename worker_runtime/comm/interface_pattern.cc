#include "worker_runtime/comm/interface_pattern.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::comm {

bool IsInterfacePattern(absl::string_view text) { return text.size() > 1; }

InterfacePattern ParseInterfacePattern(absl::string_view text) {
  InterfacePattern pattern;
  pattern.excludes = absl::ConsumePrefix(&text, "^");
  pattern.is_exact = absl::ConsumePrefix(&text, "=");
  for (absl::string_view element : absl::StrSplit(text, ',')) {
    const absl::string_view name = element.substr(0, element.find(':'));
    if (!name.empty()) pattern.names.emplace_back(name);
  }
  return pattern;
}

bool InterfacePattern::Matches(absl::string_view interface) const {
  const bool is_listed =
      names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return is_exact ? interface == name : absl::StartsWith(interface, name);
      });
  return is_listed != excludes;
}

}  // namespace muster::comm
