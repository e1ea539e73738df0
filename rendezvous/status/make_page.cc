#include "rendezvous/status/make_page.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/round_decision.h"

namespace muster::status {
namespace {

using rendezvous::JobPhase;
using rendezvous::JobState;

// The silence of a rank from which on the page speaks of it.
constexpr absl::Duration kSilenceShown = absl::Seconds(3);

double Since(MonoTime then, MonoTime now) { return absl::ToDoubleSeconds(now - then); }

HealthOfJob HealthOfEnd(const JobOutcome& outcome, bool is_over) {
  const bool is_failure = outcome.exit_code != 0;
  std::string text = outcome.reason;
  if (is_failure) absl::StrAppend(&text, " (exit code ", outcome.exit_code, ")");
  if (is_failure) return {.state = kFailed, .text = std::move(text)};
  return {.state = is_over ? kEnded : kWaiting,
          .text = is_over ? text : absl::StrCat("the job ends: ", text)};
}

HealthOfJob HealthOfRunning(const JobState& state, const JobProgress* progress, MonoTime now) {
  if (progress != nullptr && progress->standing().kind != hangs::StandingKind::kNone) {
    const Said& said = progress->standing();
    return {.state = said.kind == hangs::StandingKind::kVerdict ? kHung : kWaiting,
            .text = said.text,
            .for_seconds = Since(said.at, now)};
  }
  if (state.stop_step.has_value()) {
    return {
        .state = kWaiting,
        .text = absl::StrCat("every rank leaves after the same step: ", state.stop_step->reason),
        .for_seconds = Since(state.stop_asked_at, now)};
  }
  for (const Incarnation member : state.members) {
    const auto node = state.nodes.find(member);
    if (node == state.nodes.end() || node->second.connected) continue;
    // Its lease is not ended while nobody else is heard of either.
    const absl::Duration left = node->second.lease_expires - now;
    return {
        .state = kWaiting,
        .text = absl::StrCat(
            node->second.report.node.name, " has lost its connection; ",
            left > absl::ZeroDuration()
                ? absl::StrCat("it has ", absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                               " to come back")
                : "its lease has run out")};
  }
  return {.state = kHealthy, .for_seconds = Since(state.running_since, now)};
}

HealthOfJob HealthOf(const JobState& state, const JobProgress* progress, MonoTime now) {
  switch (state.phase) {
    case JobPhase::kForming:
      return {.state = kWaiting,
              .text = DecideRound(state, now).reason,
              .for_seconds = Since(state.forming_since, now)};
    case JobPhase::kRunning:
      return HealthOfRunning(state, progress, now);
    case JobPhase::kEnding:
    case JobPhase::kEnded:
      return HealthOfEnd(state.outcome.value_or(JobOutcome{}), state.phase == JobPhase::kEnded);
  }
  return {};
}

MonoTime PhaseBegan(const JobState& state) {
  switch (state.phase) {
    case JobPhase::kForming:
      return state.forming_since;
    case JobPhase::kRunning:
    case JobPhase::kEnding:
      return state.running_since;
    case JobPhase::kEnded:
      return state.ended_at;
  }
  return {};
}

std::string StateOfMember(const JobState& state, Incarnation member) {
  if (state.lost.contains(member)) return "lost";
  if (state.drained.contains(member)) return "draining";
  if (state.succeeded.contains(member)) return "done";
  const auto node = state.nodes.find(member);
  if (node == state.nodes.end() || !node->second.connected) return "away";
  const std::optional<CheckState>& check = node->second.report.check;
  if (check && !state.in_round.contains(member))
    return check->failure.empty() ? "checking" : "unfit";
  return state.in_round.contains(member) ? "running" : "stopped";
}

void AddProgress(const NodeSaid& said, MonoTime now, NodeOfJob& node, ProgressOfJob& job) {
  const hangs::NodeProgress& of = said.progress;
  node.step = of.slowest_step;
  const absl::Duration silent = said.silent_for + (now - said.at);
  if (said.silent_rank >= 0 && silent >= kSilenceShown) {
    node.silent_rank = said.silent_rank;
    node.silent_seconds = absl::ToDoubleSeconds(silent);
  }
  job.step = std::max(job.step, of.step);
  job.steps_per_second = std::max(job.steps_per_second, of.steps_per_second);
}

// Once the furthest is known.
void AddSlowest(const JobState& state, const JobProgress& progress, ProgressOfJob& job) {
  int64_t slowest = job.step;
  for (const auto& [agent, said] : progress.nodes()) {
    const auto described = state.descriptions.find(agent);
    if (said.progress.slowest_step < 0 || said.progress.slowest_step >= slowest) continue;
    slowest = said.progress.slowest_step;
    job.slowest_rank = said.progress.slowest_rank;
    job.slowest_node = described == state.descriptions.end() ? "" : described->second.name;
  }
  if (job.step >= 0) job.lag_steps = job.step - slowest;
}

NodeOfJob MemberOf(const JobState& state, Incarnation member, MonoTime now) {
  NodeOfJob out{.state = StateOfMember(state, member)};
  if (const auto found = state.assignments.find(member); found != state.assignments.end()) {
    out.node_rank = found->second.node_rank.value();
    out.first_rank = found->second.first_rank.value();
    out.num_ranks = found->second.local_world_size;
  }
  if (const auto found = state.descriptions.find(member); found != state.descriptions.end()) {
    out.name = found->second.name;
  }
  if (const auto found = state.nodes.find(member); found != state.nodes.end()) {
    out.lease_seconds = Since(now, found->second.lease_expires);
    if (const auto& check = found->second.report.check) out.check = check->failure;
  }
  return out;
}

// A node that was drained stays known as such after it has left.
int NumDraining(const JobState& state) {
  return static_cast<int>(
      std::count_if(state.drained.begin(), state.drained.end(),
                    [&](const auto& entry) { return state.nodes.contains(entry.first); }));
}

NodeOfJob WaitingNode(const JobState& state, Incarnation agent, std::string what, MonoTime now) {
  const rendezvous::NodeState& node = state.nodes.at(agent);
  return {.name = node.report.node.name,
          .num_ranks = node.report.node.local_world_size,
          .state = std::move(what),
          .lease_seconds = Since(now, node.lease_expires),
          .check = node.report.check ? node.report.check->failure : ""};
}

// There is more to say of those that do not simply run.
int Interest(const NodeOfJob& node) {
  if (node.state != "running") return 2;
  return node.silent_rank >= 0 ? 1 : 0;
}

// Keeps those of whom there is most to say, in their order.
void Shorten(StatusPage& page) {
  std::vector<NodeOfJob>& nodes = page.members;
  if (nodes.size() <= kNodesOnPageMax) return;
  std::vector<size_t> order(nodes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int left = Interest(nodes[a]), right = Interest(nodes[b]);
    return left != right ? left > right : nodes[a].step < nodes[b].step;
  });
  page.members_left_out = static_cast<int>(nodes.size() - kNodesOnPageMax);
  order.resize(kNodesOnPageMax);
  std::sort(order.begin(), order.end());
  std::vector<NodeOfJob> kept;
  for (const size_t i : order) kept.push_back(std::move(nodes[i]));
  nodes = std::move(kept);
}

void AddNodes(const JobState& state, const JobProgress* progress, MonoTime now, StatusPage& page) {
  for (const Incarnation member : state.members) {
    NodeOfJob node = MemberOf(state, member, now);
    if (progress != nullptr) {
      const auto said = progress->nodes().find(member);
      if (said != progress->nodes().end()) AddProgress(said->second, now, node, page.progress);
    }
    page.nodes.running += static_cast<int>(node.state == "running");
    page.members.push_back(std::move(node));
  }
  const bool runs = state.phase == JobPhase::kRunning;
  const auto add_waiting = [&](Incarnation agent, const char* what) {
    // A member that has joined again is in the list above.
    const bool is_member = state.assignments.contains(agent);
    if (!is_member) page.members.push_back(WaitingNode(state, agent, what, now));
  };
  for (const auto& [order, agent] : state.joined) add_waiting(agent, runs ? "spare" : "joined");
  for (const auto& [order, agent] : state.held_back) add_waiting(agent, "held back");
  for (const auto& [agent, node] : state.nodes) {
    const std::optional<CheckState>& check = node.report.check;
    if (check) add_waiting(agent, check->failure.empty() ? "checking" : "unfit");
  }
  Shorten(page);
}

}  // namespace

StatusPage MakeStatusPage(const std::string& run_id, const JobState& state,
                          const JobProgress* progress, MonoTime now) {
  const bool runs = state.phase == JobPhase::kRunning || state.phase == JobPhase::kEnding;
  StatusPage page{.job = run_id, .told_by = "the rendezvous"};
  page.health = HealthOf(state, progress, now);
  page.round = {.round = state.round.value(),
                .phase = std::string(ToString(state.phase)),
                .for_seconds = Since(PhaseBegan(state), now)};
  if (runs) {
    page.round.num_nodes = static_cast<int>(state.members.size());
    for (const auto& [member, assignment] : state.assignments) {
      page.round.world_size += assignment.local_world_size;
    }
  }
  page.nodes = {.joined = static_cast<int>(state.joined.size()),
                .held_back = static_cast<int>(state.held_back.size()),
                .draining = NumDraining(state),
                .lost = static_cast<int>(state.lost.size()),
                .unfit = static_cast<int>(state.outside.unfit.size())};
  if (state.settings.has_value()) {
    page.nodes.min = state.settings->min_nodes;
    page.nodes.max = state.settings->max_nodes;
    page.restarts.max = state.settings->max_restarts;
  }
  page.restarts.used = state.restarts_used;
  page.restarts.for_other_nodes = state.membership_changes;
  page.progress.committed_step = state.committed_step;
  const JobProgress* const now_running = runs ? progress : nullptr;
  AddNodes(state, now_running, now, page);
  if (now_running != nullptr) AddSlowest(state, *now_running, page.progress);
  if (progress != nullptr && progress->last().has_value()) {
    page.last_incident = {.text = progress->last()->text,
                          .ago_seconds = Since(progress->last()->at, now)};
  } else if (!state.forming_reason.empty()) {
    page.last_incident = {.text = state.forming_reason,
                          .ago_seconds = Since(state.forming_since, now)};
  }
  return page;
}

StatusPage MakeEndedPage(const std::string& run_id, const JobOutcome& outcome) {
  StatusPage page{.job = run_id, .told_by = "the rendezvous"};
  page.health = HealthOfEnd(outcome, /*is_over=*/true);
  page.round.phase = "ended";
  return page;
}

}  // namespace muster::status
