#include "tests/simulation/watch_sim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::simulation {
namespace {

constexpr Round kRound(1);
constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kHangTimeout = absl::Minutes(1);
// What is no hang stays below the limits of its phase: a minute, three for a checkpoint. A clock
// that jumps can double what is counted of a second.
constexpr absl::Duration kLongestComputation = absl::Seconds(45);
constexpr absl::Duration kLongestCheckpoint = absl::Seconds(140);
// The longest start, with a suspension longer than the limit, which is that of a checkpoint.
constexpr absl::Duration kLongestStart = absl::Seconds(160);
constexpr absl::Duration kHealthyRun = absl::Minutes(12);
constexpr absl::Duration kLongestSuspension = absl::Seconds(50);
// Limits are five times the longest silence that has ended well and was nobody's waiting: a
// checkpoint's, of which a clock that jumps may have counted more.
constexpr absl::Duration kTimeToJudge = absl::Minutes(30);
constexpr int kCallsPerStep = 6;

}  // namespace

WatchSim::WatchSim(uint64_t seed) : random_(seed), seed_(seed) {
  const int num_nodes = random_.Between(2, 4);
  const int per_node = random_.Between(1, 3);
  const int num_ranks = num_nodes * per_node;
  hangs::Group world{.name = "world"};
  for (int n = 0; n < num_nodes; ++n) {
    const Incarnation id(100 + n);
    nodes_.push_back({.id = id, .next_tick = now_ + random_.Between(kTick, absl::Seconds(1))});
    members_.push_back({id, absl::StrCat("node", n), n * per_node, per_node});
    hangs::Group local{.name = "local", .id = static_cast<uint32_t>(n)};
    for (int i = 0; i < per_node; ++i) {
      world.members.push_back(n * per_node + i);
      local.members.push_back(n * per_node + i);
      ranks_.push_back({.node = n, .busy_until = now_});
    }
    groups_.push_back(std::move(local));
  }
  // One rank of each node.
  for (int i = 0; i < per_node; ++i) {
    hangs::Group across{.name = "across", .id = static_cast<uint32_t>(i)};
    for (int n = 0; n < num_nodes; ++n) across.members.push_back(n * per_node + i);
    groups_.push_back(std::move(across));
  }
  groups_.push_back(std::move(world));
  for (Node& node : nodes_) node.may_replace = random_.Chance(0.7);
  spares_.num_nodes = random_.Between(0, 2);
  if (random_.Chance(0.5)) spares_.host = nodes_.front().id;
  watch_.StartRound(kRound, members_, now_);
  watch_.SetSpares(spares_);
  fault_ = static_cast<Fault>(random_.Between(0, 4));
  faulty_rank_ = random_.Between(0, num_ranks - 1);
  fault_at_ = now_ + random_.Between(absl::Seconds(20), kHealthyRun);
  if (fault_ == Fault::kAbsence) fault_at_ = now_;
  const bool is_late = random_.Chance(0.5);
  for (Rank& rank : ranks_) {
    const bool comes_late = is_late && random_.Chance(0.5);
    rank.comes_at = comes_late ? now_ + random_.Between(absl::ZeroDuration(), kLongestStart) : now_;
    rank.tells_start = random_.Chance(0.5);
  }
  seen_.late_starts += is_late;
  end_ = fault_ == Fault::kNone ? now_ + kHealthyRun : fault_at_ + kTimeToJudge;
  if (random_.Chance(0.1)) {
    ranks_[faulty_rank_].has_wrong_board = true;
    ++seen_.wrong_boards;
  }
}

std::string WatchSim::Run(WatchCoverage& coverage) {
  while (now_ < end_ && failure_.empty() && !is_judged_) {
    now_ = now_ + kTick;
    DrawFaults();
    RunStart();
    RunProgram();
    RunAgents();
    CheckWhatIsKnownAgain();
    if (watch_.NextDeadline() <= now_) Perform(watch_.Tick(now_));
  }
  if (failure_.empty() && has_happened_ && !is_judged_) {
    failure_ = absl::StrCat("W2: rank ", faulty_rank_, " of ", ranks_.size(), " on ", nodes_.size(),
                            " nodes was never judged; its fault: ", static_cast<int>(fault_),
                            "; the last notice: ", last_notice_);
  }
  if (failure_.empty()) RunAbort();
  for (auto field : {&WatchCoverage::hangs,
                     &WatchCoverage::mismatches,
                     &WatchCoverage::stops,
                     &WatchCoverage::absences,
                     &WatchCoverage::late_starts,
                     &WatchCoverage::wrong_boards,
                     &WatchCoverage::notices,
                     &WatchCoverage::verdicts,
                     &WatchCoverage::recoveries,
                     &WatchCoverage::unanswered,
                     &WatchCoverage::paused_agents,
                     &WatchCoverage::suspended_nodes,
                     &WatchCoverage::clock_jumps,
                     &WatchCoverage::long_phases,
                     &WatchCoverage::server_restarts,
                     &WatchCoverage::replacements,
                     &WatchCoverage::not_replaced,
                     &WatchCoverage::aborts_told,
                     &WatchCoverage::aborts_told_late,
                     &WatchCoverage::aborts_at_a_stop}) {
    coverage.*field += seen_.*field;
  }
  return failure_.empty() ? "" : absl::StrCat("seed ", seed_, ": ", failure_);
}

// The watcher is disturbed until the fault has had its time; then it must be found.
void WatchSim::DrawFaults() {
  if (fault_ != Fault::kNone && !has_happened_ && now_ >= fault_at_) {
    has_happened_ = true;
    Rank& rank = ranks_[faulty_rank_];
    rank.hangs = fault_ == Fault::kHang;
    rank.is_stopped = fault_ == Fault::kStop;
    seen_.hangs += fault_ == Fault::kHang;
    seen_.mismatches += fault_ == Fault::kMismatch;
    seen_.stops += fault_ == Fault::kStop;
    seen_.absences += fault_ == Fault::kAbsence;
  }
  if (now_ > fault_at_ + absl::Minutes(2)) return;
  if (random_.Chance(0.0005)) RestartServer();
  for (Node& node : nodes_) {
    if (random_.Chance(0.0005)) {
      node.paused_until = now_ + random_.Between(absl::Seconds(1), absl::Minutes(4));
      ++seen_.paused_agents;
    }
    if (random_.Chance(0.0005)) {
      const absl::Duration suspension = random_.Between(absl::Seconds(1), kLongestSuspension);
      node.suspended_until = now_ + suspension;
      for (Rank& rank : ranks_) {
        if (&nodes_[rank.node] == &node) rank.comes_at = rank.comes_at + suspension;
      }
      ++seen_.suspended_nodes;
    }
    if (random_.Chance(0.001)) {
      node.mute_until = now_ + random_.Between(absl::Seconds(1), absl::Minutes(1));
    }
    if (random_.Chance(0.002)) {
      node.clock += random_.Between(-absl::Hours(3), absl::Hours(3));
      ++seen_.clock_jumps;
    }
  }
}

// Whatever it was doing.
void WatchSim::RestartServer() {
  // If it dies twice in a row, what the first life knew is still owed.
  if (!learned_before_) learned_before_ = watch_.limits().history().Learned();
  watch_ = hangs::JobWatch();
  watch_.StartRound(kRound, members_, now_);
  watch_.SetSpares(spares_);
  for (Node& node : nodes_) node.is_heard = false;
  ++seen_.server_restarts;
}

void WatchSim::CheckWhatIsKnownAgain() {
  const bool all =
      std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.is_heard; });
  if (!learned_before_ || !all) return;
  const hangs::LearnedSilences now = watch_.limits().history().Learned();
  for (int phase = 0; phase < hangs::kNumWatchPhases; ++phase) {
    if (now.longest[phase] < learned_before_->longest[phase]) {
      failure_ = absl::StrCat("W3: the server has forgotten how long phase ", phase, " may take");
    }
  }
  for (const hangs::LearnedSilences::Count& before : learned_before_->counts) {
    const auto same = std::find_if(now.counts.begin(), now.counts.end(), [&](const auto& each) {
      return each.phase == before.phase && each.bucket == before.bucket;
    });
    if (same != now.counts.end() && same->count >= before.count) continue;
    failure_ = absl::StrCat("W3: the server has forgotten silences of bucket ", before.bucket);
  }
  learned_before_.reset();
}

// --- The start: all ranks come together

void WatchSim::RunStart() {
  if (is_started_) return;
  is_started_ = true;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const bool is_absent = fault_ == Fault::kAbsence && static_cast<int>(r) == faulty_rank_;
    const bool can_come = !is_absent && !rank.hangs && !rank.is_stopped &&
                          now_ >= nodes_[rank.node].suspended_until && now_ >= rank.comes_at;
    if (can_come && !std::exchange(rank.has_come, true)) ++rank.token;
    is_started_ = is_started_ && rank.has_come;
  }
}

bool WatchSim::IsMute(const Rank& rank) const {
  return !is_started_ && !(rank.has_come && rank.tells_start);
}

std::vector<hangs::Gathering> WatchSim::WhoIsMissing() const {
  hangs::Gathering start{.name = "the start", .is_start = true};
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    (ranks_[r].has_come ? start.waiting : start.missing).push_back(r);
  }
  if (start.waiting.empty() || start.missing.empty()) return {};
  return {std::move(start)};
}

// --- The program: each step calls the node's group, the one across, and that of all, in turn.

int WatchSim::GroupOfCall(int r, int64_t call) const {
  const int num_nodes = static_cast<int>(nodes_.size());
  const int per_node = static_cast<int>(ranks_.size()) / num_nodes;
  switch (call % 3) {
    case 0:
      return ranks_[r].node;
    case 1:
      return num_nodes + r % per_node;
    default:
      return static_cast<int>(groups_.size()) - 1;
  }
}

void WatchSim::RunProgram() {
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (size_t r = 0; r < ranks_.size(); ++r) goes_on = StepRank(static_cast<int>(r)) || goes_on;
  }
}

bool WatchSim::StepRank(int r) {
  Rank& rank = ranks_[r];
  const bool is_suspended = now_ < nodes_[rank.node].suspended_until;
  if (!is_started_) return false;
  if (rank.hangs || rank.is_stopped || is_suspended || rank.waits || now_ < rank.busy_until) {
    return false;
  }
  const int group = GroupOfCall(r, rank.calls);
  std::vector<hangs::Operation>& called = rank.called[group];
  hangs::Operation op{.kind = OperationKind::kAllReduce,
                      .state = OperationState::kStarted,
                      .sequence = static_cast<int64_t>(called.size()),
                      .bytes = 4096,
                      .dtype = "f32",
                      .chain = called.size() + 1,
                      .awaited = true};
  const bool has_others = groups_[group].members.size() > 1;
  const bool differs =
      fault_ == Fault::kMismatch && has_happened_ && r == faulty_rank_ && has_others;
  if (differs) op.bytes = 8;
  called.push_back(op);
  ++rank.token;
  rank.waits = true;
  FinishComplete(group, op.sequence);
  return true;
}

void WatchSim::FinishComplete(int group, int64_t sequence) {
  for (const int member : groups_[group].members) {
    const std::vector<hangs::Operation>& called = ranks_[member].called[group];
    if (static_cast<int64_t>(called.size()) <= sequence) return;
    if (called[sequence].bytes != 4096) return;
  }
  for (const int member : groups_[group].members) {
    Rank& rank = ranks_[member];
    rank.called[group][sequence].state = OperationState::kDone;
    rank.called[group][sequence].awaited = false;
    rank.waits = false;
    ++rank.calls;
    ++rank.token;
    rank.phase = Phase::kForward;
    absl::Duration work = random_.Between(absl::Milliseconds(50), absl::Seconds(1));
    if (random_.Chance(0.002)) {
      work = random_.Between(absl::Seconds(5), kLongestComputation);
      ++seen_.long_phases;
    }
    if (rank.calls % kCallsPerStep == 0 && member == 0 && random_.Chance(0.02)) {
      rank.phase = Phase::kSave;
      work = random_.Between(absl::Seconds(5), kLongestCheckpoint);
      ++seen_.long_phases;
    }
    rank.busy_until = now_ + work;
  }
}

// --- The agents

bool WatchSim::IsAwake(const Node& node) const {
  return now_ >= node.paused_until && now_ >= node.suspended_until;
}

void WatchSim::RunAgents() {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (!IsAwake(node) || now_ < node.next_tick) continue;
    node.next_tick = now_ + hangs::kWatchInterval;
    std::vector<hangs::Pulse> pulses;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].node != static_cast<int>(n)) continue;
      pulses.push_back({.rank = static_cast<int>(r),
                        .is_told = !IsMute(ranks_[r]),
                        .token = ranks_[r].token,
                        .phase = is_started_ ? ranks_[r].phase : Phase::kStarting,
                        .num_steps = is_started_ ? 5 : 0,
                        .has_operations = is_started_,
                        .is_waiting = ranks_[r].waits});
    }
    const MonoTime now = now_ + node.clock;
    if (n == 0) node.gatherings.Listen(WhoIsMissing(), now);
    node.silences.Listen(pulses, now,
                         hangs::SilencesOf(node.gatherings.At(now), node.silences.mute()));
    const bool is_lost = random_.Chance(0.05);
    if (node.num_ticks++ % 2 == 0 && !is_lost) {
      node.is_heard = true;
      Perform(watch_.OnWord(node.id, SummaryOf(node), now_));
    }
  }
}

hangs::NodeSummary WatchSim::SummaryOf(Node& node) const {
  return {.round = kRound,
          .hang_timeout = kHangTimeout,
          .ends_workers = true,
          .may_replace = node.may_replace,
          .silent = hangs::Summarize(node.silences.Silences()),
          .learned = node.silences.Learned(),
          .silence_at_start = hangs::SilenceAtStart(node.gatherings.At(now_ + node.clock))};
}

hangs::Evidence WatchSim::EvidenceOf(int n) {
  constexpr size_t kRecent = 8;
  hangs::Evidence evidence{.round = kRound, .groups = groups_};
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.node != n) continue;
    hangs::RankEvidence out{.rank = r,
                            .round = kRound,
                            .pid = 1000 + r,
                            .life = rank.is_stopped ? hangs::Life::kStopped : hangs::Life::kRunning,
                            .phase = rank.phase,
                            .silent_for = nodes_[n].silences.SilenceOf(r),
                            .is_mute = IsMute(rank),
                            .tells_waits = is_started_};
    if (is_started_) out.step = rank.calls / kCallsPerStep;
    if (out.is_mute) {
      const auto& watched_for = nodes_[n].silences.mute();
      const auto found = watched_for.find(r);
      if (found != watched_for.end()) out.silent_for = found->second;
      if (!rank.is_stopped) out.life = hangs::Life::kUnreachable;
    }
    for (const auto& [group, called] : rank.called) {
      hangs::GroupRecord record{.group = group, .num_issued = static_cast<int64_t>(called.size())};
      for (size_t i = called.size() - std::min(called.size(), kRecent); i < called.size(); ++i) {
        record.operations.push_back(called[i]);
      }
      // What was called is missing, or was never called.
      if (rank.has_wrong_board) record.num_issued += random_.Between(-3, 3);
      if (!rank.has_wrong_board || random_.Chance(0.7)) out.groups.push_back(std::move(record));
    }
    evidence.ranks.push_back(std::move(out));
  }
  return evidence;
}

std::vector<uint64_t> WatchSim::TokensOf(int n) const {
  std::vector<uint64_t> tokens;
  for (const Rank& rank : ranks_) {
    if (rank.node == n) tokens.push_back(rank.token);
  }
  return tokens;
}

void WatchSim::Perform(const hangs::JobWatch::Orders& orders) {
  for (const auto& each : orders) {
    if (const auto* replace = std::get_if<hangs::ReplaceNodes>(&each)) {
      Obey(*replace);
      continue;
    }
    const auto& order = std::get<hangs::OrderTo>(each);
    const int node = static_cast<int>(order.to.value()) - 100;
    if (!IsAwake(nodes_[node]) || now_ < nodes_[node].mute_until) {
      ++seen_.unanswered;
      continue;
    }
    std::visit([&](const auto& word) { Obey(node, word); }, order.order);
  }
}

void WatchSim::Obey(const hangs::ReplaceNodes& replace) {
  ++seen_.replacements;
  is_judged_ = true;
  const int num_nodes = static_cast<int>(replace.nodes.size());
  if (std::exchange(has_replaced_, true)) failure_ = "W4: nodes are replaced twice";
  if (num_nodes == 0 || num_nodes > spares_.num_nodes) {
    failure_ = absl::StrCat("W4: ", num_nodes, " nodes of ", spares_.num_nodes, " are replaced");
  }
  for (const Incarnation id : replace.nodes) {
    const int n = static_cast<int>(id.value()) - 100;
    bool has_faulty = false;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      has_faulty = has_faulty || (ranks_[r].node == n && IsToBlame(r));
    }
    const bool is_right = has_faulty && nodes_[n].may_replace && id != spares_.host;
    if (!is_right) failure_ = absl::StrCat("W4: node ", n, " is replaced: ", replace.why);
  }
}

void WatchSim::Obey(int n, const hangs::AskDetails& ask) {
  hangs::NodeDetails details{.question = ask.question, .summary = SummaryOf(nodes_[n])};
  details.evidence = EvidenceOf(n);
  details.gatherings = nodes_[n].gatherings.At(now_ + nodes_[n].clock);
  Perform(watch_.OnWord(nodes_[n].id, std::move(details), now_));
}

void WatchSim::Obey(int n, const hangs::AskStacks& ask) {
  hangs::NodeStacks stacks{.question = ask.question, .round = kRound};
  nodes_[n].tokens_when_asked = TokensOf(n);
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    if (ranks_[r].node == n) stacks.ranks.push_back({.rank = r, .pid = 1000 + r});
  }
  Perform(watch_.OnWord(nodes_[n].id, std::move(stacks), now_));
}

void WatchSim::Obey(int, const hangs::SayNotice& say) {
  ++seen_.notices;
  last_notice_ = say.text;
}
void WatchSim::Obey(int, const hangs::SayRecovery&) { ++seen_.recoveries; }
void WatchSim::Obey(int, const hangs::SaySlow&) {}  // its nodes measure no steps
void WatchSim::Obey(int, const hangs::AskArrivals&) {}

// --- The end of each run

void WatchSim::RunAbort() {
  constexpr absl::Duration kStep = absl::Milliseconds(10);
  for (Node& node : nodes_) node.paused_until = node.suspended_until = node.mute_until = now_;
  aborted_rank_ = random_.Between(0, static_cast<int>(ranks_.size()) - 1);
  aborted_at_ = now_;
  const MonoTime stops_at = now_ + random_.Between(absl::ZeroDuration(), absl::Seconds(2));
  Node& teller = nodes_[ranks_[aborted_rank_].node];
  teller.is_heard = true;
  Perform(watch_.OnWord(teller.id, hangs::RankAborted{kRound, aborted_rank_}, now_));
  while (now_ < aborted_at_ + absl::Seconds(3) && failure_.empty()) {
    now_ = now_ + kStep;
    if (watch_.IsWatching() && now_ >= stops_at) watch_.StopRound();
    for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) AnswerAbort(n);
    if (watch_.NextDeadline() <= now_) Perform(watch_.Tick(now_));
  }
  for (const Node& node : nodes_) {
    if (!failure_.empty() || node.num_aborts_told == (node.is_heard ? 1 : 0)) continue;
    failure_ = absl::StrCat("W5: node ", node.id.value(), " is told of an abort ",
                            node.num_aborts_told, " times");
  }
}

void WatchSim::Obey(int n, const hangs::AskLastCalls&) {
  nodes_[n].answers_abort_at =
      now_ + random_.Between(absl::ZeroDuration(), absl::Milliseconds(1200));
}

void WatchSim::AnswerAbort(int n) {
  Node& node = nodes_[n];
  if (!node.answers_abort_at || now_ < *node.answers_abort_at) return;
  node.answers_abort_at.reset();
  node.has_answered_abort = node.num_aborts_told == 0;
  hangs::NodeLastCalls answer{.round = kRound};
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    if (ranks_[r].node != n) continue;
    hangs::Operation call{.sequence = r};
    answer.ranks.push_back({.rank = r, .age = {}, .calls = {{"world", "world", std::move(call)}}});
  }
  Perform(watch_.OnWord(node.id, std::move(answer), now_));
}

void WatchSim::Obey(int n, const hangs::SayAborts& say) {
  ++nodes_[n].num_aborts_told;
  ++seen_.aborts_told;
  seen_.aborts_told_late += say.report.unknown.empty() ? 0 : 1;
  seen_.aborts_at_a_stop += watch_.IsWatching() ? 0 : 1;
  std::vector<int> unknown;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    if (!nodes_[ranks_[r].node].has_answered_abort) unknown.push_back(r);
  }
  const bool is_right =
      say.report.aborted == std::vector<int>{aborted_rank_} && say.report.unknown == unknown;
  const bool is_in_time = now_ <= aborted_at_ + absl::Seconds(1);
  if (is_right && is_in_time) return;
  failure_ = absl::StrCat("W5: node ", n, " is told after ",
                          absl::FormatDuration(now_ - aborted_at_), ": ", InWords(say.report));
}

bool WatchSim::IsToBlame(int r) const {
  const bool is_faulty = r == faulty_rank_ && has_happened_;
  return is_faulty || ranks_[r].has_wrong_board;
}

void WatchSim::Obey(int n, const hangs::SayVerdict& say) {
  ++seen_.verdicts;
  is_judged_ = true;
  seen_.not_replaced += absl::StrContains(say.action, "--watch=replace, but") ? 1 : 0;
  if (say.replaces && !say.to_end.empty()) failure_ = "W4: workers end although nodes are replaced";
  // Neither of two sides of equal size is right, and both are named.
  const bool is_tie = say.diagnosis.confidence < 0.8;
  for (const int culprit : say.diagnosis.culprits) {
    if (IsToBlame(culprit) || is_tie) continue;
    failure_ = absl::StrCat("W1: node ", n, " hears a verdict on rank ", culprit,
                            ", which is innocent: ", say.diagnosis.Describe(), "; ", say.reason);
  }
  const bool is_real = has_happened_ || ranks_[faulty_rank_].has_wrong_board;
  if (!is_real) failure_ = absl::StrCat("W1: nothing hangs: ", say.diagnosis.Describe());
}

}  // namespace muster::simulation
