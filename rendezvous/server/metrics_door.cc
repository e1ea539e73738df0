#include "rendezvous/server/metrics_door.h"

#include "proto/base/version.h"
#include "proto/io/metrics_token.h"
#include "rendezvous/status/job_metrics.h"
#include "rendezvous/status/metrics_text.h"

namespace muster::rendezvous {

MetricsDoor::MetricsDoor(asio::io_context& loop, RendezvousServer& server,
                         const std::vector<OwnerKey>& owners, bool authentication)
    : server_(server),
      authentication_(authentication),
      door_(loop,
            [this](const HttpRequest& request, HttpDoor::Tell tell) { tell(Answer(request)); }) {
  for (const OwnerKey& owner : owners) {
    owners_.emplace_back(owner.owner, DeriveMetricsToken(owner.secret));
  }
}

HttpAnswer MetricsDoor::Answer(const HttpRequest& request) {
  if (request.path != "/metrics") return {.status = 404, .body = "metrics are at /metrics\n"};
  for (const auto& [owner, token] : owners_) {
    if (authentication_ && !IsBearerOf(request.authorization, token)) continue;
    return {.content_type = status::kMetricsContentType,
            .body = status::JobMetrics(server_.PagesOf(owner), std::string(Version()))};
  }
  return {.status = 401,
          .challenge = "Bearer",
          .body = "this needs the token that `muster metrics_token` prints\n"};
}

}  // namespace muster::rendezvous
