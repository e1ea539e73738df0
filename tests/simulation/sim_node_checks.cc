// Node checks that pass, fail, flap and hang. The letters are those of sim_cluster.h.
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr absl::Duration kCheckLimit = absl::Seconds(60);  // one that hangs is ended then
constexpr double kHangs = 0.2;                             // of those that fail

// "n1 joined" speaks of n1, and "n12 joined" does not.
bool SpeaksOf(const std::string& text, const std::string& name) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool begins = at == 0 || !absl::ascii_isalnum(text[at - 1]);
    if (begins && (end == text.size() || !absl::ascii_isalnum(text[end]))) return true;
  }
  return false;
}

}  // namespace

void SimCluster::RunCheck(Node& node) {
  const bool fails = !is_healed_ && random_.Chance(plan_.failed_checks);
  const bool hangs = fails && random_.Chance(kHangs);
  const absl::Duration length =
      hangs ? kCheckLimit : random_.Between(absl::Milliseconds(1), absl::Seconds(5));
  node.check = {.number = ++numbers_};
  if (fails && node.hosts && JobOf(node).settings.max_nodes == 1) NoteCause(node, kExitNodeUnfit);
  schedule_.After(length, [this, id = node.incarnation, number = node.check.number, fails] {
    Node& checked = nodes_.at(id);
    if (!checked.is_alive || checked.check.number != number) return;
    checked.check = {.has_passed = !fails};
    coverage_.checks_failed += fails;
    coverage_.checks_passed += !fails;
    fates_[checked.job].disturbances += fails;
    StepAgent(id, agent::CheckEnded{.failure = fails ? "GPU 3 is gone" : ""});
  });
}

void SimCluster::CheckIsFit(const Node& node) {
  if (plan_.failed_checks == 0 || node.check.has_passed) return;
  Fail(absl::StrCat("P2: ", node.name, " starts workers, and has not passed its check"));
}

bool SimCluster::IsOwnFailure(const Node& node, const WorkerFailure& failure) const {
  // What ranks called last may be asked for first, and a stop come before the answer.
  if (node.is_paused || plan_.inquiries > 0) return false;
  return failure.signal == 0 && node.core->phase() == agent::NodePhase::kRunning;
}

void SimCluster::CheckEndsNoRound(const Node& node, const AgentReport& report, bool ran_without,
                                  const std::vector<rendezvous::JobTable::JobEffect>& effects) {
  if (!report.check || !ran_without) return;
  ++coverage_.rounds_without_unfit;
  for (const rendezvous::JobTable::JobEffect& effect : effects) {
    const auto* said = std::get_if<rendezvous::Announce>(&effect.effect);
    const bool is_end =
        said != nullptr && (said->event == "round_stopped" || said->event == "job_ending" ||
                            said->event == "job_ended");
    if (is_end && JobOfKey(effect.job) == node.job && SpeaksOf(said->reason, node.name)) {
      Fail(absl::StrCat("P2: the check of ", node.name, " ends a round: ", said->reason));
    }
  }
}

}  // namespace muster::simulation
