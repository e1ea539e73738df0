#include "agent/sight/metrics_door.h"

#include <optional>
#include <utility>

#include "proto/io/metrics_token.h"
#include "rendezvous/status/metrics_text.h"

namespace muster::agent {

MetricsDoor::MetricsDoor(asio::io_context& loop, Lane lane, MetricsSource source)
    : source_(std::move(source)),
      aside_(loop, std::move(lane)),
      door_(loop, [this](const HttpRequest& request, HttpDoor::Tell tell) {
        Tell(request, std::move(tell));
      }) {}

absl::StatusOr<int> MetricsDoor::Listen(const Endpoint& at, std::string token) {
  token_ = std::move(token);
  return door_.Listen(at.host, at.port);
}

void MetricsDoor::Tell(const HttpRequest& request, HttpDoor::Tell tell) {
  if (request.path != "/metrics") {
    return tell({.status = 404, .body = "metrics are at /metrics\n"});
  }
  if (!token_.empty() && !IsBearerOf(request.authorization, token_)) {
    return tell({.status = 401,
                 .challenge = "Bearer",
                 .body = "this needs the token that `muster metrics_token` prints\n"});
  }
  aside_.Run<std::string>(
      kFiguresPatience,
      [reader = reader_, ranks = source_.ranks(), figures = source_.figures(),
       lines = source_.kernel_lines()]() mutable {
        figures.of_node = reader->Read(ranks, lines, MonoNow());
        return AgentMetrics(figures);
      },
      [this, tell = std::move(tell)](std::optional<std::string> text) mutable {
        // A driver is stuck: what needs none is told.
        if (!text) text = AgentMetrics(source_.figures());
        tell({.content_type = status::kMetricsContentType, .body = *std::move(text)});
      });
}

}  // namespace muster::agent
