// What a person asks of a job (`muster stop`, `muster drain NODE`), and the answer. Asking again
// asks for the same, so a request whose answer was lost may be sent again.
//
// Pure values.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster {

struct StopRequest {
  std::string node;    // the one to be drained, by its name or address; empty: the whole job
  std::string reason;  // of the person, for people; empty: none was given
  // Whether the workers are signalled now, without a stop step; they have --shutdown_timeout.
  bool at_once = false;
  friend bool operator==(const StopRequest&, const StopRequest&) = default;
};

// Errors: kNotFound: no such job or node. kFailedPrecondition: the job is ending, or cannot go on
//         without that node. kInvalidArgument: a run id that this server does not serve.
struct StopAnswer {
  absl::Status status;
  std::string text;  // what happens now; empty if `status` is not ok
  friend bool operator==(const StopAnswer&, const StopAnswer&) = default;
};

}  // namespace muster
