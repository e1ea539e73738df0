// Why a worker was ended by a signal, as far as its node can tell.
//
// Threads: pure, but for ReadCorePattern.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::agent {

struct SignalDeath {
  int pid = 0;
  int signal = 0;
  bool has_core = false;
  bool was_ours = false;                  // muster sent it
  bool was_out_of_memory = false;         // told elsewhere
  std::vector<std::string> kernel_lines;  // kernel_log.h
  std::string core_pattern;               // the text of /proc/sys/kernel/core_pattern
};

// The core pattern of this machine; empty where it may not be read.
std::string ReadCorePattern();

// Several clauses, or nothing where there is nothing to say.
std::string Explain(const SignalDeath& death);

// "its core file lies in its working directory, as core.17", "its core was given to ...".
//
// Source: core(5).
std::string WhereTheCoreIs(absl::string_view pattern, int pid);

}  // namespace muster::agent
