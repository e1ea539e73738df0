// The door at which musterd tells a Prometheus of its jobs (rendezvous/status/job_metrics.h). A
// request with the token of a user (proto/io/metrics_token.h) is told of that user's jobs; without
// authentication, each is told of all.
//
// Loop thread only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "proto/base/endpoint.h"
#include "proto/io/http_door.h"
#include "proto/io/job_key.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::rendezvous {

class MetricsDoor {
 public:
  // `server` must outlive it.
  MetricsDoor(asio::io_context& loop, RendezvousServer& server, const std::vector<OwnerKey>& owners,
              bool authentication);

  // Errors: as HttpDoor::Listen.
  absl::StatusOr<int> Listen(const Endpoint& at) { return door_.Listen(at.host, at.port); }

 private:
  HttpAnswer Answer(const HttpRequest& request);

  RendezvousServer& server_;
  const bool authentication_;
  std::vector<std::pair<std::string, std::string>> owners_;  // and their tokens
  HttpDoor door_;
};

}  // namespace muster::rendezvous
