// How a node watches its workers for hangs.
//
// Pure values.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "agent/watch/hang_reporter.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/evidence/last_calls.h"

namespace muster::agent {

struct HangWatchOptions {
  bool is_on = true;
  bool ends_workers = false;  // at a verdict; else it is only reported
  bool may_replace = false;   // the server may end this node's part in the job instead
  absl::Duration hang_timeout = absl::Minutes(10);
  absl::Duration grace = absl::Seconds(30);  // --shutdown_timeout
  std::string run_id;
  std::string node;
  std::string report_directory;
  OnWatchSaid on_said;  // see HangReporter
  // What waits for the answers to what ranks called last (abort_inquiry.h).
  std::function<void(Round, const hangs::LastCallsState&)> on_last_calls;
};

}  // namespace muster::agent
