#include "agent/core/node_standing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::agent {

void NodeStanding::TakePorts(const PortsReserved& event) {
  node_.store_port = event.store_port;
  node_.worker_ports = event.worker_ports;
}

void NodeStanding::TakeInstance(Instance instance) {
  if (!is_stale() || round_ == kNoRound) instance_ = instance;
}

void NodeStanding::TakePlace(const Assignment& assignment) {
  round_ = assignment.round;
  num_nodes_ = assignment.num_nodes;
  failed_pairs_.clear();
  past_.attempts = std::max(past_.attempts, assignment.restart_count + 1);
  past_.restarts_used = std::max(past_.restarts_used, assignment.restarts_used);
}

void NodeStanding::BecomeStale(bool has_failed) {
  instance_ = Instance();
  if (has_failed) ++past_.restarts_used;
}

void NodeStanding::BeginJoin() {
  if (!is_stale()) return;
  round_ = kNoRound;
  num_nodes_ = 0;
  failed_pairs_.clear();
}

void NodeStanding::Describe(bool is_running, AgentReport* report) {
  last_reported_round_ = round_;
  report->round = round_;
  report->instance = instance_;
  report->num_nodes = num_nodes_;
  report->past = past_;
  report->node = node_;
  if (is_running) report->failed_pairs = failed_pairs_;
}

std::string NodeStanding::CheckInvariants() const {
  if (last_reported_round_ <= round_ || is_stale()) return "";
  return absl::StrCat("A4: reported round ", ToString(last_reported_round_), " but is in ",
                      ToString(round_));
}

}  // namespace muster::agent
