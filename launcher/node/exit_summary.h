// The last words of a job: JobOutcome -> text for stderr. Pure.
//
// Laid out like torchrun's, so that eyes and greps keep working ("Root Cause (first observed
// failure):", "exitcode  : 1 (pid: 4242)"), but the root cause comes first, is the first of all
// nodes, and nothing is cut off. Source: torch 2.15,
// torch/distributed/elastic/multiprocessing/errors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/membership.h"

namespace muster::launcher {

struct SummaryOptions {
  std::string program;    // train.py
  std::string this_node;  // name of the node that prints
  std::string python;     // that this node's workers run in, and why; empty: none
  int max_failures = 8;   // further ones are counted
  // Whether this console has shown what the worker wrote: then its last line is enough here. Unset:
  // it has not.
  std::function<bool(const WorkerFailure&)> was_shown;
  // Pairs of nodes that did not reach each other before the workers started, one sentence each.
  std::vector<std::string> network_faults;
  // The consoles of all nodes are one: the node of the root cause prints it, the others a line.
  bool shares_console = false;
  absl::TimeZone time_zone = absl::LocalTimeZone();
};

// Empty for a job that succeeded. Names the root cause (the first failing worker of all nodes):
// time with milliseconds, host, rank, exit code or signal in words, error file and message, or the
// last lines of output (the last line alone, where was_shown says so); on other nodes it says
// because of whom they stopped, and that is all there is on a console that nodes share. Without a
// root cause it is the reason and the exit code. A network that failed its check comes before all
// else. Ends with a newline.
std::string FormatExitSummary(const JobOutcome& outcome, const SummaryOptions& options);

}  // namespace muster::launcher
