#include "launcher/doctor/measured_nodes.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "proto/base/bounded_json.h"

namespace muster::launcher {
namespace {

std::vector<Endpoint> NodesOf(const std::string& tf_config) {
  std::vector<Endpoint> nodes;
  const nlohmann::json config = ParseJsonFromOutside(tf_config);
  const nlohmann::json workers =
      config.is_object() && config.contains("cluster") && config["cluster"].is_object()
          ? config["cluster"].value("worker", nlohmann::json::array())
          : nlohmann::json::array();
  for (const nlohmann::json& worker : workers) {
    if (!worker.is_string()) return {};
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(worker.get<std::string>(), 0);
    if (!endpoint.ok() || endpoint->port == 0) return {};
    nodes.push_back(*endpoint);
  }
  return nodes;
}

std::vector<Endpoint> NodesOf(const SchedulerFindings& scheduler) {
  const TakenOption* const meeting = scheduler.Find("rdzv_endpoint");
  if (!scheduler.is_slurm || meeting == nullptr || !scheduler.unplaced.ok()) return {};
  const absl::StatusOr<Endpoint> first = ParseEndpoint(meeting->value, 0);
  if (!first.ok()) return {};
  std::vector<Endpoint> nodes;
  for (const std::string& name : scheduler.nodes) {
    nodes.push_back({.host = name, .port = first->port});
  }
  return nodes;
}

MeasuredNodes Among(std::vector<Endpoint> nodes, const std::string& number) {
  int self = -1;
  if (nodes.size() < 2 || !absl::SimpleAtoi(number, &self) || self < 0 ||
      self >= static_cast<int>(nodes.size())) {
    return {};
  }
  return {.nodes = std::move(nodes), .self = self};
}

}  // namespace

MeasuredNodes FindMeasuredNodes(const EnvironmentMap& environment,
                                const SchedulerFindings& scheduler) {
  if (const TakenOption* const rank = scheduler.Find("node_rank")) {
    return Among(NodesOf(scheduler), rank->value);
  }
  if (VariableOrEmpty(environment, "LOCAL_WORLD_SIZE") != "1") return {};
  return Among(NodesOf(VariableOrEmpty(environment, "TF_CONFIG")),
               VariableOrEmpty(environment, "RANK"));
}

}  // namespace muster::launcher
