// The place where the nodes meet, in numbers: name resolution, whether the endpoint is this
// machine, and the address this node gives to the others. Blocking; used before anything is
// started.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

struct ResolvedEndpoint {
  std::string host;     // as the user gave it
  std::string address;  // numeric; one of this machine's if any of the name's is
  int port = 0;
  bool is_local = false;  // the address belongs to this machine
  // The host means this machine's loopback here; other machines know it by another address.
  bool is_loopback = false;
};

// Told the first error, before it is tried again.
using OnWait = std::function<void(const absl::Status&)>;

// Resolves the endpoint's name; while the name is unknown, tries again for `patience` (a headless
// service's name may appear late). No comparison of host names is made: an address is ours if an
// interface has it.
//
// Errors: kInvalidArgument naming the host and the resolver's reason.
absl::StatusOr<ResolvedEndpoint> ResolveEndpoint(const Endpoint& endpoint, absl::Duration patience,
                                                 const OnWait& on_wait);

// Whether somebody listens at an address of this machine. Connects only where /proc tells of no
// socket that listens there, as where the kernel passes the port on to a container.
bool IsServedHere(const ResolvedEndpoint& endpoint);

// Whether `host` is localhost, this machine's own name, or a name or number of an address it has.
bool IsThisMachine(const std::string& host);

// The numeric address at which others reach this node: `local_addr` if given, else the source
// address of the route to the endpoint.
//
// Errors: kInvalidArgument if `local_addr` does not resolve or belongs to no interface of this
// machine.
absl::StatusOr<std::string> ChooseLocalAddress(const std::string& local_addr,
                                               const ResolvedEndpoint& endpoint);

}  // namespace muster::launcher
