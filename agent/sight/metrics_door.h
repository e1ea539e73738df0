// An agent's metrics over HTTP, for a Prometheus: made when they are asked for, and only for those
// who show the token.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/process/aside.h"
#include "agent/process/lane.h"
#include "agent/sight/agent_metrics.h"
#include "agent/sight/figures_reader.h"
#include "asio/io_context.hpp"
#include "proto/base/endpoint.h"
#include "proto/io/http_door.h"

namespace muster::agent {

struct MetricsSource {
  std::function<AgentFigures()> figures;  // without those of the node
  std::function<std::vector<status::RankFigures>()> ranks;
  std::function<std::vector<std::string>()> kernel_lines;
};

class MetricsDoor {
 public:
  // What is read of the kernel and the driver, and the text, are made on `lane`.
  MetricsDoor(asio::io_context& loop, Lane lane, MetricsSource source);

  // Serves those who show `token`, or everyone where it is empty. Returns the port.
  //
  // Errors: as HttpDoor::Listen.
  absl::StatusOr<int> Listen(const Endpoint& at, std::string token);
  void Close() { door_.Close(); }

 private:
  void Tell(const HttpRequest& request, HttpDoor::Tell tell);

  const MetricsSource source_;
  std::string token_;
  Aside aside_;
  // Rates are since the last read, so that each who reads regularly has one of its own.
  std::shared_ptr<FiguresReader> reader_ = std::make_shared<FiguresReader>();
  HttpDoor door_;
};

}  // namespace muster::agent
