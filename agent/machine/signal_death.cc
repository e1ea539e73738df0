#include "agent/machine/signal_death.h"

#include <signal.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "agent/machine/kernel_log.h"
#include "proto/io/read_file.h"

namespace muster::agent {

std::string ReadCorePattern() { return TextOf("/proc/sys/kernel/core_pattern"); }

std::string WhereTheCoreIs(absl::string_view pattern, int pid) {
  pattern = absl::StripAsciiWhitespace(pattern);
  if (pattern.empty()) return "a core of it was written";
  if (absl::ConsumePrefix(&pattern, "|")) {
    return absl::StrCat("its core was given to ", pattern.substr(0, pattern.find(' ')));
  }
  const std::string name = absl::StrReplaceAll(pattern, {{"%p", absl::StrCat(pid)}});
  const std::string where = absl::StartsWith(name, "/") ? "" : " in its working directory";
  const bool is_open = absl::StrContains(name, '%');
  return absl::StrCat("its core file lies", where, is_open ? " by the pattern " : " as ", name);
}

std::string Explain(const SignalDeath& death) {
  std::string text = WhatTheKernelSays(death.kernel_lines, death.pid);
  const auto add = [&text](absl::string_view clause) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", clause);
  };
  if (death.has_core) add(WhereTheCoreIs(death.core_pattern, death.pid));
  const bool is_unexplained = text.empty() && !death.was_ours && !death.was_out_of_memory;
  if (death.signal == SIGKILL && is_unexplained) {
    add("muster did not send this SIGKILL, and the kernel does not say who did: a person, the "
        "scheduler, or the program itself");
  }
  return text;
}

}  // namespace muster::agent
