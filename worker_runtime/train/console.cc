#include "worker_runtime/train/console.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace muster::train {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void Console::Print(absl::string_view text) const {
  if (!speaks_) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

bool IsUtf8Locale(absl::string_view lc_all, absl::string_view lc_ctype, absl::string_view lang) {
  const std::string locale = absl::AsciiStrToLower(!lc_all.empty()     ? lc_all
                                                   : !lc_ctype.empty() ? lc_ctype
                                                                       : lang);
  return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
}

bool TerminalIsUtf8() {
  return IsUtf8Locale(Variable("LC_ALL"), Variable("LC_CTYPE"), Variable("LANG"));
}

}  // namespace muster::train
