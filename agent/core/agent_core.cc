#include "agent/core/agent_core.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

bool HasWorkers(NodePhase phase) {
  return phase == NodePhase::kRunning || phase == NodePhase::kStopping;
}

bool IsBetweenRounds(NodePhase phase) {
  return phase == NodePhase::kChecking || phase == NodePhase::kReserving ||
         phase == NodePhase::kJoining;
}

// Schedulers warn with these before they end a job; they are the workers' business and stop
// nothing, unless --signals_to_handle names them.
bool IsPassedOn(int signal) { return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT; }

}  // namespace

AgentCore::AgentCore(AgentCoreOptions options)
    : options_(std::move(options)), standing_(options_.node) {}

std::vector<Effect> AgentCore::Step(const Event& event, MonoTime now) {
  if (phase_ == NodePhase::kDone) return {};
  Turn turn{.options = options_, .now = now};
  if (!std::holds_alternative<LastCallsChanged>(event)) TakeKept(turn);
  std::visit([&](const auto& e) { On(e, turn); }, event);
  kept_back_.KeepBack(turn);
  return std::move(turn.effects);
}

MonoTime AgentCore::NextDeadline() const {
  if (phase_ == NodePhase::kIdle || phase_ == NodePhase::kDone) return MonoTime::InfiniteFuture();
  MonoTime next = Min(ServerDeadline(), ReportDeadline());
  if (phase_ == NodePhase::kStopping) next = Min(next, ladder_.deadline());
  next = Min(Min(next, kept_back_.Deadline()), CheckDeadline());
  return Min(next, Min(HelloDeadline(), WishDeadline()));
}

absl::Status AgentCore::MayPublish(MonoTime now) const {
  return server_.MayPublish(options_, standing_.num_nodes(), now);
}

std::string AgentCore::CheckInvariants() const {
  const int num_strays = phase_ == NodePhase::kDone ? workers_.NumAlive() : workers_.NumRunning();
  if (!HasWorkers(phase_) && num_strays > 0 && workers_.unkillable_pids().empty()) {
    return absl::StrCat("A3: ", num_strays, " workers live in phase ", ToString(phase_));
  }
  return standing_.CheckInvariants();
}

// --- Events

void AgentCore::On(const Started&, Turn& turn) {
  server_.Begin(turn.now);
  BeginJoin(turn);
}

void AgentCore::On(const PortsReserved& event, Turn& turn) {
  if (phase_ != NodePhase::kReserving) return;
  standing_.TakePorts(event);
  Enter(NodePhase::kJoining);
  Report(turn);
}

void AgentCore::On(const PortsFailed& event, Turn& turn) {
  if (phase_ != NodePhase::kReserving) return;
  const std::string reason(event.status.message());
  Depart({.reason = absl::StrCat(options_.node.name, " left: ", reason)}, turn);
  // What the user asked for cannot be had: said as such, not as a departure.
  if (auto* finish = std::get_if<Finish>(&turn.effects.back())) {
    finish->outcome = {.exit_code = ExitCodeOf(event.status), .reason = reason};
  }
}

// What the others run goes on: the server hears that this node wants no place yet, and why.
void AgentCore::On(const CheckEnded& event, Turn& turn) {
  if (phase_ != NodePhase::kChecking || !check_.is_running()) return;
  if (std::optional<Departure> departure = check_.Take(event, turn)) {
    Depart(*std::move(departure), turn);
    return;
  }
  if (!check_.is_open(options_)) return BeginJoin(turn);
  Report(turn);
  ladder_.Aim(After::kJoin);
  EndSurvivors(turn);
}

void AgentCore::On(const DirectiveArrived& event, Turn& turn) {
  const Directive& directive = event.directive;
  if (!server_.Hear(directive)) return;
  if (!std::holds_alternative<Refuse>(directive.body)) {
    standing_.TakeInstance(directive.instance);
    server_.NoteAttended(turn);
  }
  std::visit([&](const auto& body) { Obey(body, turn); }, directive.body);
}

void AgentCore::On(const LinkChanged& event, Turn& turn) {
  server_.Change(event);
  // Once accepted, a refusal comes from somebody else who listens on the server's port, or from a
  // server that is being set up: as good as no answer.
  if (!event.fatal.ok() && !server_.was_accepted()) {
    Obey(Refuse{event.fatal}, turn);
    return;
  }
  if (event.up) {
    if (phase_ != NodePhase::kIdle && phase_ != NodePhase::kReserving) Report(turn);
    return;
  }
  if (!ending_.is_open()) return;  // it is not needed any more
  if (server_.was_accepted() && HasWorkers(phase_)) {
    server_.NoteUnattended(
        "rendezvous_unreachable",
        absl::StrCat("lost ", options_.server, " (", event.detail, "); workers run on for up to ",
                     absl::FormatDuration(options_.settings.orphan_timeout), " while we try again"),
        turn);
  } else {
    turn.Do(ShowStatus{absl::StrCat("waiting for ", options_.server, ": ", event.detail)});
  }
}

void AgentCore::On(const LeaseTold& event, Turn& turn) { server_.TakeLease(event, turn); }

void AgentCore::On(const WorkerSpawned& event, Turn& turn) {
  if (!workers_.IsOf(event.round) || !workers_.Note(event, turn)) return;
  const bool is_stopping = phase_ == NodePhase::kStopping;
  if (!is_stopping) {
    ladder_.Aim(phase_ == NodePhase::kReporting ? After::kAsk : After::kJoin);
    check_.Interrupt(turn);
    Enter(NodePhase::kStopping);
  }
  ladder_.StartKilled(is_stopping, turn);
  turn.Do(EndWorker{event.local_rank, "it was started for a round that is over"});
}

void AgentCore::On(const WorkerExited& event, Turn& turn) {
  if (!workers_.IsOf(event.round)) return;
  if (!event.failure) return Take(event, turn);
  kept_back_.Keep(event, turn.now);
  TakeKept(turn);
}

void AgentCore::On(const LastCallsChanged& event, Turn& turn) {
  if (!workers_.IsOf(event.round)) return;
  kept_back_.Note(event, turn.now);
  TakeKept(turn);
}

void AgentCore::TakeKept(Turn& turn) {
  for (Effect& effect : kept_back_.TakeEffects(turn.now)) turn.Do(std::move(effect));
  for (const WorkerExited& exit : kept_back_.TakeFailures(turn.now)) Take(exit, turn);
}

void AgentCore::Take(const WorkerExited& event, Turn& turn) {
  workers_.NoteEnd(event.local_rank);
  if (event.failure && event.is_its_own) turn.Do(NoteFailure{*event.failure});
  if (!HasWorkers(phase_)) {
    turn.Say(Announce::Level::kWarning, "survivor_ended",
             absl::StrCat("local rank ", event.local_rank.value(), " of ", options_.node.name,
                          " ended while it awaited the next round",
                          event.failure ? ": it " + HowItEnded(*event.failure) : ""));
    return;
  }
  const bool is_stopping = phase_ == NodePhase::kStopping;
  if (event.failure && ladder_.Counts(*event.failure, is_stopping)) {
    workers_.NoteFailure(*event.failure, turn.now);
  }
  if (is_stopping) {
    if (event.failure && ForbidsRestart(*event.failure)) Report(turn);
    if (workers_.NumRunning() == 0 && ladder_.awaits_workers()) ladder_.BeginSweep(turn);
    return;
  }
  const absl::Duration grace = options_.settings.shutdown_timeout;
  if (event.failure) {
    const WorkerFailure& failure = *event.failure;
    const std::string end = HowItEnded(failure);
    turn.Say(Announce::Level::kError, "worker_failed",
             absl::StrFormat("rank %d (local rank %d, pid %d) %s%s", failure.rank.value(),
                             failure.local_rank.value(), failure.pid, end,
                             workers_.WhatFollows(options_.node.name)));
    BeginStop(After::kAsk, SIGTERM, grace, turn,
              absl::StrCat("rank ", failure.rank.value(), " ", end));
  } else if (workers_.NumAlive() == 0) {
    BeginStop(After::kWait, SIGTERM, grace, turn);
  }
}

void AgentCore::On(const WorkerPromised& event, Turn& turn) {
  if (!workers_.IsOf(event.round)) return;
  const std::optional<int64_t> before = stop_.Floor(workers_);
  const WorkerGroup::News news = workers_.Note(event);
  switch (phase_) {
    case NodePhase::kRunning:
      if (news.begins_to_obey && stop_.is_known()) stop_.TellWorkers(turn);
      if (stop_.Floor(workers_) != before) Report(turn);
      return;
    case NodePhase::kStopping:
      if (workers_.NumRunning() == 0 && ladder_.awaits_workers()) ladder_.BeginSweep(turn);
      // The others have been killed, and it was spared.
      if (news.has_strayed && ladder_.has_killed()) {
        turn.Do(EndWorker{event.local_rank, "it awaited the next round, and does no more"});
      }
      // It has heard of this round after all, and must let go of it, or its connection broke.
      if (news.has_strayed && !ladder_.awaits_workers()) ladder_.StartAgain(turn);
      return;
    default:
      // Its connection broke, so it would not hear of the next round: its end is waited for, and
      // the others stay.
      if (!news.has_strayed) return;
      ladder_.Aim(phase_ == NodePhase::kReporting ? After::kAsk : After::kJoin);
      EndParked({event.local_rank}, turn);
  }
}

void AgentCore::On(const WorkerGreeted& event, Turn&) {
  if (workers_.IsOf(event.round)) workers_.Note(event);
}

void AgentCore::On(const DescendantsGone&, Turn& turn) {
  if (phase_ == NodePhase::kStopping && !ladder_.awaits_workers()) GroundReached(turn);
}

void AgentCore::On(const DescendantsNamed& event, Turn& turn) {
  if (phase_ == NodePhase::kStopping) ladder_.NoteLeftovers(event, turn);
}

void AgentCore::On(const SignalReceived& event, Turn& turn) {
  const std::vector<int>& stop = options_.stop_signals;
  const bool stops = std::find(stop.begin(), stop.end(), event.signal) != stop.end();
  const int num_alive = workers_.NumAlive();
  if (IsPassedOn(event.signal) && !stops) {
    // It is meant for a worker that handles it; what is stopped goes on with its group.
    const MonoTime group_at = event.signal == SIGCONT ? turn.now : MonoTime::InfiniteFuture();
    if (num_alive > 0) turn.Do(SignalWorkers{.signal = event.signal, .group_at = group_at});
    return;
  }
  if (ending_.is_leaving()) {
    if (phase_ != NodePhase::kStopping || ladder_.is_in_haste()) return;
    turn.Say(Announce::Level::kWarning, "interrupted_again",
             "interrupted again; ending the workers at once");
    if (ladder_.Hurry(turn.now)) ClimbLadder(turn);
    return;
  }
  const bool by_person = event.signal != SIGTERM && !IsPassedOn(event.signal);
  Departure departure{.signal = event.signal,
                      .ends_job = event.signal != SIGTERM || options_.settings.is_static,
                      .reason = absl::StrCat(options_.node.name, " was ",
                                             by_person ? "interrupted by " : "told to end by ",
                                             SignalName(event.signal))};
  const bool may_wish = !by_person && !stop_.is_wished() && !ending_.has_outcome();
  if (may_wish && AskForStopStep(departure, turn)) return;
  if (num_alive > 0) {
    turn.Say(
        Announce::Level::kInfo, "interrupted",
        absl::StrCat("got ", SignalName(event.signal), "; stopping ", num_alive, " workers (up to ",
                     absl::FormatDuration(options_.settings.shutdown_timeout),
                     "; once more ends them at once)"));
  }
  Depart(std::move(departure), turn);
}

void AgentCore::On(const TimeRunsOut& event, Turn& turn) {
  if (!ending_.is_open() || stop_.is_wished()) return;
  AskForStopStep({.signal = SIGTERM, .ends_job = true, .reason = event.reason}, turn);
}

void AgentCore::On(const GuardianLost& event, Turn& turn) {
  workers_.NoteEndOfAll();
  turn.Say(Announce::Level::kError, "guardian_lost", event.reason);
  ending_.Depart({.reason = absl::StrCat(options_.node.name, " left: ", event.reason)});
  if (phase_ == NodePhase::kStopping) {
    ladder_.AimToLeave();
    GroundReached(turn);
    return;
  }
  Report(turn);
  Conclude(ending_.OutcomeOfDeparture(), turn);
}

void AgentCore::On(const RoundForbidden& event, Turn& turn) {
  if (!ending_.is_open()) return;
  turn.Say(Announce::Level::kError, "network_refused", event.departure.reason);
  Depart(event.departure, turn);
}

// The rendezvous decides who goes on; its directive ends the round, or the job.
void AgentCore::On(const PairsFailed& event, Turn& turn) {
  if (event.round != round() || phase_ != NodePhase::kRunning) return;
  standing_.TakeFailedPairs(event.pairs);
  Report(turn);
}

void AgentCore::On(const Tick&, Turn& turn) {
  if (phase_ == NodePhase::kIdle) return;
  if (phase_ == NodePhase::kStopping && turn.now >= ladder_.deadline()) ClimbLadder(turn);
  if (phase_ == NodePhase::kDone) return;
  if (turn.now >= CheckDeadline()) check_.Run(turn);
  if (turn.now >= HelloDeadline()) workers_.EndThoseThatDoNotCome(turn);
  if (turn.now >= WishDeadline()) {
    Depart(stop_.GiveUp(workers_, turn), turn);
    if (phase_ == NodePhase::kDone) return;
  }
  if (turn.now >= ServerDeadline()) {
    GiveUpOnServer(turn);
  } else if (turn.now >= ReportDeadline()) {
    Report(turn);
  }
}

// --- Directives

void AgentCore::Obey(const Wait& wait, Turn& turn) {
  if (phase_ != NodePhase::kJoining && phase_ != NodePhase::kWaiting &&
      phase_ != NodePhase::kReporting)
    return;
  if (wait.text == shown_status_) return;
  shown_status_ = wait.text;
  turn.Do(ShowStatus{wait.text});
}

void AgentCore::Obey(const RunRound& run, Turn& turn) {
  const Assignment& assignment = run.assignment;
  // A server that had asked for a stop, and has lost what it wrote, does not ask any more.
  if (phase_ == NodePhase::kRunning && assignment.round == round()) stop_.Withdraw(workers_, turn);
  if (phase_ != NodePhase::kJoining || assignment.round <= round()) return;
  kept_back_.GiveUp();
  TakeKept(turn);
  kept_back_ = {};
  standing_.TakePlace(assignment);
  ladder_.Reset();
  stop_.BeginRound();
  std::vector<LocalRank> kept = workers_.Begin(assignment);
  Enter(NodePhase::kRunning);
  turn.Do(ShowStatus{""});
  turn.Do(StartWorkers{assignment, std::move(kept)});
  Report(turn);
}

void AgentCore::Obey(const StopRound& stop, Turn& turn) {
  if (ending_.is_leaving()) return;
  if (stop.round > round() && IsBetweenRounds(phase_)) {
    standing_.PassOver(stop.round);
    if (phase_ != NodePhase::kReserving) Report(turn);
    return;
  }
  if (stop.round != round()) return;
  if (stop_.is_wished() && !ending_.has_outcome()) {  // another round is not for this node
    Depart(stop_.departure(), turn);
    return;
  }
  const bool fails = stop.cause == StopCause::kJobFailed;
  const After after = fails ? After::kAsk : After::kJoin;
  ending_.NoteJobFailed(fails ? std::optional(stop) : std::nullopt);
  const absl::Duration full = options_.settings.shutdown_timeout;
  const absl::Duration grace = stop.peer_lost ? std::min(full, options_.lost_peer_grace) : full;
  switch (phase_) {
    case NodePhase::kRunning:
      turn.Say(Announce::Level::kInfo, "stopping", stop.reason);
      BeginStop(after, SIGTERM, grace, turn, fails ? "" : stop.reason);
      return;
    case NodePhase::kStopping:
      if (ladder_.after() == After::kAsk || ladder_.after() == After::kWait) {
        if (!fails) turn.Say(Announce::Level::kInfo, "restarting", stop.reason);
        ladder_.Aim(after);
      }
      ladder_.EndLingering(turn);
      return;
    case NodePhase::kWaiting:
      turn.Say(Announce::Level::kInfo, "stopping", stop.reason);
      if (fails) {
        Enter(NodePhase::kReporting);
        Report(turn);
      } else {
        JoinAgain(turn);
      }
      return;
    case NodePhase::kReporting:
      if (fails) return;
      turn.Say(Announce::Level::kInfo, "restarting", stop.reason);
      JoinAgain(turn);
      return;
    default:
      return;
  }
}

void AgentCore::Obey(const StopAt& at, Turn& turn) {
  if (at.round != round() || phase_ != NodePhase::kRunning || !stop_.Take(at, turn)) return;
  if (stop_.Floor(workers_)) Report(turn);
}

void AgentCore::Obey(const EndJob& end, Turn& turn) {
  if (ending_.is_leaving()) return;
  // What else ends with 0 says why by itself: the program has finished.
  const bool waits = IsBetweenRounds(phase_);
  const bool left_together = stop_.is_known() && phase_ == NodePhase::kWaiting;
  if (end.outcome.exit_code == 0 && (waits || left_together)) {
    turn.Say(Announce::Level::kInfo, "ended", end.outcome.reason);
  }
  EndWith(end.outcome, turn);
}

void AgentCore::Obey(const Refuse& refuse, Turn& turn) {
  if (ending_.is_leaving()) return;
  const std::string why(refuse.status.message());
  const absl::StatusCode code = refuse.status.code();
  const bool is_forgotten =
      code == absl::StatusCode::kAborted || code == absl::StatusCode::kUnavailable;
  if (is_forgotten && ending_.is_job_failed() && !ending_.has_outcome()) {
    EndAsTold("was started again, and does not know how the job ended", turn);
    return;
  }
  if (code == absl::StatusCode::kAborted) {
    server_.NoteAttended(turn);
    BeginAnew(why, turn);
    return;
  }
  if (code == absl::StatusCode::kUnavailable) {
    // A server without a record of us counts our time itself. Where no worker is at stake, and only
    // the outcome is waited for, it is not the one to wait for.
    if (phase_ != NodePhase::kReporting) server_.NoteAlive(turn.now);
    if (IsBetweenRounds(phase_) && round() == kNoRound) {
      Obey(Wait{why}, turn);
      return;
    }
    server_.NoteUnattended("job_unrecorded", why, turn);
    return;
  }
  if (server_.IsStranger(refuse)) {
    server_.NoteUnattended("rendezvous_refuses",
                           absl::StrCat(why, "; it knew this node before, so we try again"), turn);
    return;
  }
  EndWith({.exit_code = ExitCodeOf(refuse.status), .reason = why}, turn);
}

void AgentCore::BeginAnew(const std::string& why, Turn& turn) {
  if (phase_ == NodePhase::kStopping && standing_.is_stale()) return;  // told before
  if (stop_.is_wished() && !ending_.has_outcome()) {  // another round is not for this node
    Depart(stop_.departure(), turn);
    return;
  }
  turn.Say(Announce::Level::kWarning, "stale", why);
  standing_.BecomeStale(workers_.has_failed());
  if (phase_ == NodePhase::kRunning) {
    BeginStop(After::kJoin, SIGTERM, options_.settings.shutdown_timeout, turn);
  } else if (phase_ == NodePhase::kStopping) {
    if (ladder_.after() == After::kFinish) return;
    ladder_.Aim(After::kJoin);
    ladder_.EndLingering(turn);
    EndSurvivors(turn);
  } else {
    ladder_.Aim(After::kJoin);
    if (!EndSurvivors(turn) && phase_ != NodePhase::kReserving) JoinAgain(turn);
  }
}

// --- The rendezvous

MonoTime AgentCore::ServerDeadline() const {
  if (phase_ == NodePhase::kIdle || !ending_.is_open()) return MonoTime::InfiniteFuture();
  return server_.Deadline(options_, phase_ == NodePhase::kReporting);
}

MonoTime AgentCore::ReportDeadline() const {
  if (phase_ == NodePhase::kReserving) return MonoTime::InfiniteFuture();
  return server_.NextReport(options_.lease);
}

void AgentCore::GiveUpOnServer(Turn& turn) {
  if (!server_.was_heard()) {
    EndWith(NodeEnding::OutcomeOfNoAnswer(server_.detail(), options_), turn);
    return;
  }
  const std::string silence = server_.Silence(turn.now);
  if (ending_.is_job_failed()) {
    EndAsTold(absl::StrCat("is lost: ", silence), turn);
    return;
  }
  EndWith(NodeEnding::OutcomeWithoutServer(silence, options_, workers_), turn);
}

void AgentCore::EndAsTold(const std::string& why_no_more, Turn& turn) {
  EndWith(ending_.OutcomeAsTold(why_no_more, options_, workers_), turn);
}

AgentPhase AgentCore::ReportedPhase() const {
  if (ending_.is_leaving()) return AgentPhase::kLeaving;
  switch (phase_) {
    case NodePhase::kRunning:
      return AgentPhase::kRunning;
    case NodePhase::kStopping:
      if (check_.is_open(options_)) return AgentPhase::kJoining;
      return workers_.has_failed() ? AgentPhase::kFailed : AgentPhase::kRunning;
    case NodePhase::kWaiting:
      return AgentPhase::kSucceeded;
    case NodePhase::kReporting:
      return AgentPhase::kStopped;
    default:
      return AgentPhase::kJoining;
  }
}

void AgentCore::Report(Turn& turn) {
  AgentReport report{.sequence = server_.NumberReport(turn.now),
                     .phase = ReportedPhase(),
                     .settings = options_.settings,
                     .failures = workers_.FailuresAt(turn.now),
                     .unkillable_pids = workers_.unkillable_pids(),
                     .departure = ending_.departure(),
                     .stop_floor = stop_.Floor(workers_)};
  standing_.Describe(phase_ == NodePhase::kRunning, &report);
  if (report.phase == AgentPhase::kJoining && check_.is_open(options_)) {
    report.check = CheckState{.failure = check_.failure()};
  }
  if (!ending_.is_leaving()) report.stop_wish = stop_.Wished();
  turn.Do(SendReport{std::move(report)});
}

// --- The workers, and the end

void AgentCore::Enter(NodePhase phase) {
  MUSTER_CHECK(IsAllowed(phase_, phase));
  phase_ = phase;
}

MonoTime AgentCore::HelloDeadline() const {
  return phase_ == NodePhase::kRunning ? workers_.HelloDeadline() : MonoTime::InfiniteFuture();
}

MonoTime AgentCore::CheckDeadline() const {
  return phase_ == NodePhase::kChecking ? check_.NextRun() : MonoTime::InfiniteFuture();
}

MonoTime AgentCore::WishDeadline() const {
  return stop_.is_wished() && ending_.is_open() ? stop_.patience_ends()
                                                : MonoTime::InfiniteFuture();
}

// The order matters: the server hears that this node is stopping before the first signal is sent,
// so it has stopped counting on the node whatever the workers do next.
void AgentCore::BeginStop(After after, int first_signal, absl::Duration grace, Turn& turn,
                          const std::string& kept_for) {
  ladder_.Aim(after);
  ladder_.SetGrace(turn.now + grace);
  Enter(NodePhase::kStopping);
  if (after != After::kWait) Report(turn);
  if (workers_.NumAlive() > 0) stop_.Withdraw(workers_, turn);
  ladder_.Start(first_signal, kept_for, workers_, turn);
}

void AgentCore::ClimbLadder(Turn& turn) {
  if (ladder_.Climb(workers_, turn)) GroundReached(turn);
}

// Nobody is left, or nobody that could be waited for: on to what the stop was for. That may have
// changed since it began: an end of the job that arrives in the middle of a restart wins.
void AgentCore::GroundReached(Turn& turn) {
  ladder_.ReachGround();
  if (ladder_.after() == After::kJoin) DepartIfUnkillable(turn);
  const bool is_followed = ladder_.after() == After::kAsk || ladder_.after() == After::kJoin;
  if (!is_followed && EndSurvivors(turn)) return;
  switch (ladder_.after()) {
    case After::kWait:
      Enter(NodePhase::kWaiting);
      Report(turn);
      return;
    case After::kAsk:
      Enter(NodePhase::kReporting);
      Report(turn);
      return;
    case After::kJoin:
      JoinAgain(turn);
      return;
    case After::kLeave:
      Report(turn);
      Conclude(ending_.OutcomeOfDeparture(), turn);
      return;
    case After::kFinish:
      Conclude(ending_.outcome(), turn);
      return;
  }
}

// A worker that lives on may hold what the next round needs.
bool AgentCore::DepartIfUnkillable(Turn& turn) {
  const std::vector<int>& unkillable = workers_.unkillable_pids();
  if (unkillable.empty()) return false;
  ending_.Depart({.reason = absl::StrCat(options_.node.name, " could not end pid ",
                                         absl::StrJoin(unkillable, ", "))});
  ladder_.Aim(After::kLeave);
  Report(turn);
  return true;
}

void AgentCore::JoinAgain(Turn& turn) {
  if (DepartIfUnkillable(turn)) {
    if (!EndSurvivors(turn)) Conclude(ending_.OutcomeOfDeparture(), turn);
    return;
  }
  if (workers_.has_failed()) check_.BecomeDue();
  standing_.BeginJoin();
  workers_.LeaveRound();
  ending_.NoteJobFailed(std::nullopt);
  shown_status_.clear();
  BeginJoin(turn);
}

void AgentCore::BeginJoin(Turn& turn) {
  if (!check_.is_open(options_)) {
    if (phase_ != NodePhase::kReserving) Enter(NodePhase::kReserving);
    turn.Do(ReservePorts{});
    return;
  }
  if (phase_ != NodePhase::kChecking) Enter(NodePhase::kChecking);
  Report(turn);
  if (check_.is_due()) check_.Run(turn);
}

bool AgentCore::EndSurvivors(Turn& turn) {
  const std::vector<LocalRank> kept = workers_.Kept();
  if (kept.empty()) return false;
  const bool is_unfit = phase_ == NodePhase::kChecking && ladder_.after() == After::kJoin;
  turn.Do(TellRoundOver{
      .is_followed = false,
      .reason = is_unfit ? check_.failure() : ending_.WhyNoRoundFollows(ladder_.after())});
  EndParked(kept, turn);
  return true;
}

void AgentCore::EndParked(const std::vector<LocalRank>& ended, Turn& turn) {
  check_.Interrupt(turn);
  if (phase_ != NodePhase::kStopping) Enter(NodePhase::kStopping);
  ladder_.StartForParked(workers_.Release(ended), turn);
}

bool AgentCore::AskForStopStep(const Departure& departure, Turn& turn) {
  if (phase_ != NodePhase::kRunning || !server_.is_serving() || !workers_.AllObey()) return false;
  stop_.Wish(departure, workers_, turn);
  Report(turn);
  return true;
}

void AgentCore::Depart(Departure departure, Turn& turn) {
  const int signal = departure.signal != 0 ? departure.signal : SIGTERM;
  ending_.Depart(std::move(departure));
  switch (phase_) {
    case NodePhase::kRunning:
      BeginStop(After::kLeave, signal,
                stop_.is_wished() ? stop_.GraceLeft(turn.now) : options_.settings.shutdown_timeout,
                turn);
      return;
    case NodePhase::kStopping:
      ladder_.AimToLeave();
      Report(turn);
      ladder_.EndLingering(turn);
      EndSurvivors(turn);
      return;
    case NodePhase::kIdle:
      break;
    default:
      Report(turn);
      ladder_.Aim(After::kLeave);
      if (EndSurvivors(turn)) return;
  }
  Conclude(ending_.OutcomeOfDeparture(), turn);
}

void AgentCore::EndWith(JobOutcome outcome, Turn& turn) {
  ending_.End(std::move(outcome));
  if (phase_ == NodePhase::kRunning) {
    turn.Say(Announce::Level::kInfo, "stopping", ending_.outcome().reason);
    BeginStop(After::kFinish, SIGTERM, options_.settings.shutdown_timeout, turn);
    return;
  }
  ladder_.Aim(After::kFinish);
  if (phase_ == NodePhase::kStopping) ladder_.EndLingering(turn);
  if (EndSurvivors(turn) || phase_ == NodePhase::kStopping) return;
  Conclude(ending_.outcome(), turn);
}

void AgentCore::Conclude(JobOutcome outcome, Turn& turn) {
  check_.Interrupt(turn);
  Enter(NodePhase::kDone);
  turn.Do(ShowStatus{""});
  turn.Do(Finish{.outcome = std::move(outcome), .in_haste = ladder_.is_in_haste()});
}

}  // namespace muster::agent
