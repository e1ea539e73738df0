#include "worker_runtime/train/console.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "proto/base/environment.h"

namespace muster::train {
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
  const EnvironmentMap environment = EnvironmentOf(environ);
  return IsUtf8Locale(VariableOrEmpty(environment, "LC_ALL"),
                      VariableOrEmpty(environment, "LC_CTYPE"),
                      VariableOrEmpty(environment, "LANG"));
}

}  // namespace muster::train
