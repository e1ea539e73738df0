// The server that a link connects with, and who is at our end.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "proto/base/backoff.h"
#include "proto/base/ids.h"
#include "proto/io/credentials.h"
#include "proto/io/user_secret.h"

namespace muster::rendezvous {

// What the process at our end is.
enum class LinkRole { kAgent, kPerson, kObserver };

struct GrpcLinkOptions {
  std::string host;  // name or numeric address, IPv6 without brackets
  int port = 0;
  UserSecret secret;
  TlsMode tls = TlsMode::kOn;
  std::string run_id;
  LinkRole role = LinkRole::kAgent;
  Incarnation incarnation;
  std::string node_name;
  BackoffOptions backoff;
  uint64_t jitter_seed = 0;
  absl::Duration attempt_timeout = absl::Seconds(10);  // from the first packet to `accepted`
};

}  // namespace muster::rendezvous
