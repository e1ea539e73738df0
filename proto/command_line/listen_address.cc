#include "proto/command_line/listen_address.h"

#include "proto/command_line/values.h"

namespace muster::command_line {

absl::StatusOr<Endpoint> ParseListenAddress(const std::string& text) {
  constexpr int kNone = -1;
  const absl::StatusOr<int> port = ParseInteger(text);
  if (port.ok() && 0 <= *port && *port <= kMaxPort) {
    return Endpoint{.host = "127.0.0.1", .port = *port};
  }
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text, kNone);
  if (!port.ok() && endpoint.ok() && endpoint->port != kNone && !endpoint->host.empty()) {
    return endpoint;
  }
  return absl::InvalidArgumentError(
      "expected PORT, or an address with it such as 0.0.0.0:9400 or [::]:9400");
}

}  // namespace muster::command_line
