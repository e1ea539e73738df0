// The way of a person to a job that is looked at: through the socket of an agent on this node, or
// over the network to the rendezvous, as an observer.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/line/invocation.h"
#include "launcher/sight/sight_options.h"
#include "proto/base/inquiry.h"
#include "rendezvous/client/link_options.h"
#include "rendezvous/status/status_page.h"

namespace muster::launcher {

// Threads: compatible; calls block.
class Observer {
 public:
  virtual ~Observer() = default;
  // The answer, whose own status is ok. `job` of the inquiry is filled in.
  //
  // Errors: that of the answer; kUnavailable: nobody answers in time; kPermissionDenied: the secret
  //         was refused.
  virtual absl::StatusOr<InquiryAnswer> Ask(Inquiry inquiry, absl::Duration patience) = 0;
};

// A job with an agent on this node.
struct JobHere {
  std::string socket;
  pid_t pid = 0;  // of its agent
  // Its status; of an agent that does not answer `error` says so.
  absl::StatusOr<status::StatusPage> page = absl::UnknownError("");
};

// The wait for a rendezvous after which a person is told of it.
inline constexpr absl::Duration kQuietWait = absl::Seconds(1);
// Tells a person on stderr.
void SayWait(const std::string& endpoint, absl::Duration patience);

// The jobs of this user, each once, by their names.
std::vector<JobHere> FindJobsHere(const EnvironmentMap& environment);

// The way to the rendezvous of a job that has an agent here, as that agent knows it: for what only
// the rendezvous does. `job`: its run id; empty: the only one. Without an endpoint if it has none.
//
// Errors: kNotFound as ReachJob; kUnavailable.
absl::StatusOr<SightWay> FindWayHere(const std::string& job, const EnvironmentMap& environment);

// A link to the rendezvous of a way that has an endpoint. Errors: those of the secret.
absl::StatusOr<rendezvous::GrpcLinkOptions> LinkOf(const SightWay& way, rendezvous::LinkRole role,
                                                   const Invocation& invocation);

// The way to one job.
//
// Errors: kNotFound: there is no such job here, or none or several and none was named; those of the
//         secret; kInvalidArgument.
absl::StatusOr<std::unique_ptr<Observer>> ReachJob(const SightWay& way,
                                                   const Invocation& invocation);
// The way to a rendezvous, for its list of jobs too. `way` has an endpoint.
absl::StatusOr<std::unique_ptr<Observer>> ReachRendezvous(const SightWay& way,
                                                          const Invocation& invocation);

}  // namespace muster::launcher
