// Inquiries into what ranks called last, where a worker has aborted: its node and the others of the
// round ask their workers, as agent/watch/abort_inquiry.h does it. Answers come in time, late or
// never, and so does the word of the judge. C15.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr double kSilence = 0.3;  // chance of one who never answers
// A check of what a deadline has led to comes so much later.
constexpr absl::Duration kMoment = absl::Milliseconds(1);

}  // namespace

void SimCluster::BeginInquiries(const Node& node) {
  const RoundId round = IdOf(*node.assignment);
  const absl::Duration limit =
      random_.Between(absl::Milliseconds(50), JobOf(node).settings.shutdown_timeout / 2);
  Inquire(node.incarnation, round, limit, /*awaits_judge=*/true);
  for (const auto& [id, other] : nodes_) {
    const bool is_member =
        other.job == node.job && other.assignment && IdOf(*other.assignment) == round;
    if (!is_member || id == node.incarnation || random_.Chance(0.1)) continue;
    schedule_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(300)),
                    [this, id = id, round, limit] { Inquire(id, round, limit, false); });
  }
}

void SimCluster::Inquire(Incarnation id, RoundId round, absl::Duration limit, bool awaits_judge) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || node.finished || IdOf(*node.assignment) != round) return;
  Inquiry& inquiry = node.inquiry;
  const bool is_first = inquiry.round != round;
  if (is_first) inquiry = {.round = round, .ends = schedule_.now() + limit, .asks_workers = true};
  if (!is_first && !awaits_judge) return;
  inquiry.awaits_judge |= awaits_judge;
  TellInquiry(id, round);
  const auto answer = [&](bool Inquiry::*what) {
    if (random_.Chance(kSilence)) return;
    schedule_.After(random_.Between(absl::Milliseconds(1), limit * 1.2), [this, id, round, what] {
      nodes_.at(id).inquiry.*what = false;
      TellInquiry(id, round);
    });
  };
  if (is_first) answer(&Inquiry::asks_workers);
  if (awaits_judge) answer(&Inquiry::awaits_judge);
}

void SimCluster::TellInquiry(Incarnation id, RoundId round) {
  const Node& node = nodes_.at(id);
  const Inquiry& inquiry = node.inquiry;
  if (inquiry.round != round) return;  // another has begun, of a later round
  const absl::Duration left = std::max(absl::ZeroDuration(), inquiry.ends - schedule_.now());
  StepAgent(id, agent::LastCallsChanged{round.second,
                                        {.asks_workers = inquiry.asks_workers,
                                         .awaits_judge = inquiry.awaits_judge,
                                         .within = left * node.clock_rate}});
}

void SimCluster::NoteHeardInquiry(Node& node, const agent::LastCallsChanged& event) {
  if (!node.assignment || event.round != node.assignment->round) return;
  HeardInquiry& heard = node.heard_inquiry;
  heard.asks_workers = event.state.asks_workers;
  heard.awaits_judge = event.state.awaits_judge;
  if (!heard.asks_workers && !heard.awaits_judge) return;
  ++coverage_.inquiries;
  heard.until = Min(heard.until, NowOf(node) + event.state.within);
}

void SimCluster::CheckAtEndOfInquiry(const Node& node, std::function<std::string(Node&)> why_late) {
  const MonoTime end = MonoTime::At(node.heard_inquiry.until.since_zero() / node.clock_rate);
  schedule_.At(end + kMoment, [this, id = node.incarnation, round = IdOf(*node.assignment),
                               why_late = std::move(why_late)] {
    Node& same = nodes_.at(id);
    const bool is_there = same.is_alive && !same.is_paused && !same.finished;
    if (!is_there || IdOf(*same.assignment) != round) return;
    if (const std::string why = why_late(same); !why.empty()) {
      Fail(absl::StrCat("C15: ", same.name, " ", why, " though its inquiry is over"));
    }
  });
}

void SimCluster::PrepareSignal(Node& node) {
  ++coverage_.signals_kept;
  ++node.signals_kept;
  CheckAtEndOfInquiry(node, [](const Node& same) {
    return std::string(same.signals_kept > 0 ? "has not signalled its workers" : "");
  });
}

void SimCluster::CheckMaySignal(Node& node) {
  if (node.signals_kept > 0) --node.signals_kept;
  const HeardInquiry& heard = node.heard_inquiry;
  // What its round has left behind when the next begins is not asked any more.
  if (node.core->round() != node.assignment->round || !heard.asks_workers) return;
  if (NowOf(node) >= heard.until) return;
  Fail(absl::StrCat("C15: workers of ", node.name, " are signalled before they have answered"));
}

void SimCluster::CheckFailureIsTaken(const Node& node, const agent::WorkerExited& event) {
  const auto is_kept = [event](const Node& of) {
    return of.core->phase() == agent::NodePhase::kRunning && of.core->round() == event.round;
  };
  if (!event.failure || !is_kept(node)) return;
  const HeardInquiry& heard = node.heard_inquiry;
  const bool is_open = heard.asks_workers || heard.awaits_judge;
  if (!is_open || NowOf(node) >= heard.until) {
    Fail(absl::StrCat("C15: ", node.name, " runs on after a failure, and nobody is asked"));
    return;
  }
  ++coverage_.failures_kept;
  CheckAtEndOfInquiry(node, [is_kept](const Node& same) {
    return std::string(is_kept(same) ? "runs on after a failure" : "");
  });
}

}  // namespace muster::simulation
