// What happens to a node: events, directives, the way to the server. agent_core_stop.cc has how its
// workers are stopped.
#include "agent/core/agent_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"
#include "proto/base/lease.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

bool HasWorkers(NodePhase phase) {
  return phase == NodePhase::kRunning || phase == NodePhase::kStopping;
}

// A signal by which a program ends itself, not us.
bool IsCrash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE ||
         signal == SIGILL;
}

// Schedulers warn with these before they end a job; they are the workers' business and stop
// nothing, unless --signals_to_handle names them.
bool IsPassedOn(int signal) { return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT; }

// Unanswered reports to a reachable server that are remembered, for the orphan time-out.
constexpr size_t kMaxUnanswered = 1024;

}  // namespace

AgentCore::AgentCore(AgentCoreOptions options)
    : options_(std::move(options)), node_(options_.node) {}

std::vector<Effect> AgentCore::Step(const Event& event, MonoTime now) {
  Effects out;
  if (phase_ == NodePhase::kDone) return out;
  std::visit([&](const auto& e) { On(e, now, out); }, event);
  return out;
}

MonoTime AgentCore::NextDeadline() const {
  if (phase_ == NodePhase::kIdle || phase_ == NodePhase::kDone) return MonoTime::InfiniteFuture();
  MonoTime next = ServerDeadline();
  if (link_up_ && phase_ != NodePhase::kReserving) {
    next = Min(next, last_sent_ + options_.lease.renew_interval);
  }
  if (phase_ == NodePhase::kStopping) next = Min(next, rung_deadline_);
  next = Min(next, HelloDeadline());
  if (wish_ && !departure_ && !outcome_) next = Min(next, wish_->patience_ends);
  return next;
}

std::string AgentCore::CheckInvariants() const {
  const int num_strays = phase_ == NodePhase::kDone ? NumAlive() : NumRunning();
  if (!HasWorkers(phase_) && num_strays > 0 && unkillable_pids_.empty()) {
    return absl::StrCat("A3: ", num_strays, " workers live in phase ", ToString(phase_));
  }
  if (last_reported_round_ > round_ && instance_.value() != 0) {
    return absl::StrCat("A4: reported round ", ToString(last_reported_round_), " but is in ",
                        ToString(round_));
  }
  return "";
}

// --- Events

void AgentCore::On(const Started&, MonoTime now, Effects& out) {
  last_heard_ = now;
  Enter(NodePhase::kReserving);
  out.push_back(ReservePorts{});
}

void AgentCore::On(const PortsReserved& event, MonoTime now, Effects& out) {
  if (phase_ != NodePhase::kReserving) return;
  node_.store_port = event.store_port;
  node_.worker_ports = event.worker_ports;
  Enter(NodePhase::kJoining);
  Report(now, out);
}

void AgentCore::On(const PortsFailed& event, MonoTime now, Effects& out) {
  if (phase_ != NodePhase::kReserving) return;
  const std::string reason(event.status.message());
  Depart({.reason = absl::StrCat(options_.node.name, " left: ", reason)}, now, out);
  // What the user asked for cannot be had: said as such, not as a departure.
  if (auto* finish = std::get_if<Finish>(&out.back())) {
    finish->outcome = {.exit_code = ExitCodeOf(event.status), .reason = reason};
  }
}

void AgentCore::On(const DirectiveArrived& event, MonoTime now, Effects& out) {
  const Directive& d = event.directive;
  if (d.term < term_) return;
  if (d.term == term_ && d.revision <= last_revision_) return;
  term_ = d.term;
  last_revision_ = d.revision;
  heard_server_ = true;
  for (; !unanswered_.empty() && unanswered_.front().first <= d.report_sequence;
       unanswered_.pop_front()) {
    answered_ = unanswered_.front().second;
  }
  if (!std::holds_alternative<Refuse>(d.body)) {
    // While it stops workers of an instance that is over, what it reports is of no other.
    if (instance_ != Instance() || round_ == kNoRound) instance_ = d.instance;
    NoteAttended(now, out);
  }
  std::visit([&](const auto& body) { Obey(body, now, out); }, d.body);
}

void AgentCore::On(const LinkChanged& event, MonoTime now, Effects& out) {
  link_up_ = event.up;
  link_detail_ = event.detail;
  // Once accepted, a refusal comes from somebody else who listens on the server's port, or from a
  // server that is being set up: as good as no answer.
  if (!event.fatal.ok() && !was_accepted_) {
    Obey(Refuse{event.fatal}, now, out);
    return;
  }
  if (event.up) {
    if (phase_ != NodePhase::kIdle && phase_ != NodePhase::kReserving) Report(now, out);
    return;
  }
  if (outcome_ || departure_) return;  // it is not needed any more
  if (was_accepted_ && HasWorkers(phase_)) {
    NoteUnattended(
        "rendezvous_unreachable",
        absl::StrCat("lost ", options_.server, " (", event.detail, "); workers run on for up to ",
                     absl::FormatDuration(options_.settings.orphan_timeout), " while we try again"),
        out);
  } else {
    out.push_back(ShowStatus{absl::StrCat("waiting for ", options_.server, ": ", event.detail)});
  }
}

void AgentCore::On(const WorkerSpawned& event, MonoTime now, Effects&) {
  if (event.round != workers_round_) return;
  for (Worker& worker : workers_) {
    if (worker.local_rank != event.local_rank) continue;
    // One that was kept and has ended since is started anew: that program has promised nothing.
    if (worker.pid != event.pid) worker.survives = worker.awaits_round = false;
    worker.pid = event.pid;
    if (worker.awaits_round) worker.hello_due = now + options_.hello_timeout;
  }
}

void AgentCore::On(const WorkerExited& event, MonoTime now, Effects& out) {
  if (event.round != workers_round_) return;
  for (Worker& worker : workers_) {
    if (worker.local_rank == event.local_rank) worker.alive = false;
  }
  if (!HasWorkers(phase_)) {
    out.push_back(
        Announce{Announce::Level::kWarning, "survivor_ended",
                 absl::StrCat("local rank ", event.local_rank.value(), " of ", options_.node.name,
                              " ended while it awaited the next round",
                              event.failure ? ": it " + HowItEnded(*event.failure) : "")});
    return;
  }
  // After our own signal an end is no failure, unless the program crashed by itself, or has
  // something to say by it.
  const bool forbids_restart = event.failure && ForbidsRestart(*event.failure);
  const bool counts =
      event.failure && (!ladder_started_ || forbids_restart ||
                        (phase_ == NodePhase::kStopping && IsCrash(event.failure->signal)));
  if (counts) failures_.push_back({now - event.failure->age, *event.failure});
  if (forbids_restart && phase_ == NodePhase::kStopping) Report(now, out);
  if (phase_ == NodePhase::kRunning) {
    if (event.failure) {
      AnnounceFailure(*event.failure, out);
      BeginStop(
          After::kAsk, SIGTERM, options_.settings.shutdown_timeout, now, out,
          absl::StrCat("rank ", event.failure->rank.value(), " ", HowItEnded(*event.failure)));
    } else if (NumAlive() == 0) {
      BeginStop(After::kWait, SIGTERM, options_.settings.shutdown_timeout, now, out);
    }
    return;
  }
  if (phase_ == NodePhase::kStopping && NumRunning() == 0 && rung_ < Rung::kLingering) {
    BeginSweep(now, out);
  }
}

void AgentCore::On(const DescendantsGone&, MonoTime now, Effects& out) {
  if (phase_ == NodePhase::kStopping && rung_ >= Rung::kLingering) GroundReached(now, out);
}

void AgentCore::On(const DescendantsNamed& event, MonoTime now, Effects& out) {
  if (phase_ != NodePhase::kStopping || rung_ != Rung::kLingering || event.names.empty()) return;
  leftovers_ = absl::StrJoin(event.names, ", ");
  out.push_back(Announce{
      Announce::Level::kInfo, "leftovers",
      absl::StrCat("the workers succeeded and left running: ", *leftovers_, "; waiting up to ",
                   absl::FormatDuration(absl::Ceil(grace_deadline_ - now, absl::Seconds(1))),
                   " for their end (--shutdown_timeout)")});
}

void AgentCore::On(const SignalReceived& event, MonoTime now, Effects& out) {
  const std::vector<int>& stop = options_.stop_signals;
  const bool stops = std::find(stop.begin(), stop.end(), event.signal) != stop.end();
  if (IsPassedOn(event.signal) && !stops) {
    if (NumAlive() > 0) out.push_back(SignalWorkers{.signal = event.signal});
    return;
  }
  if (departure_) {
    if (phase_ != NodePhase::kStopping || interrupted_twice_) return;
    interrupted_twice_ = true;
    out.push_back(Announce{Announce::Level::kWarning, "interrupted_again",
                           "interrupted again; ending the workers at once"});
    grace_deadline_ = now;
    if (rung_ == Rung::kSignalled || rung_ == Rung::kSweeping) ClimbLadder(now, out);
    return;
  }
  const bool by_person = event.signal != SIGTERM && !IsPassedOn(event.signal);
  Departure departure{.signal = event.signal,
                      .ends_job = event.signal != SIGTERM || options_.settings.is_static,
                      .reason = absl::StrCat(options_.node.name, " was ",
                                             by_person ? "interrupted by " : "told to end by ",
                                             SignalName(event.signal))};
  if (!by_person && !wish_ && !outcome_ && AskForStopStep(departure, now, out)) return;
  if (NumAlive() > 0) {
    out.push_back(Announce{
        Announce::Level::kInfo, "interrupted",
        absl::StrCat("got ", SignalName(event.signal), "; stopping ", NumAlive(),
                     " workers (up to ", absl::FormatDuration(options_.settings.shutdown_timeout),
                     "; once more ends them at once)")});
  }
  Depart(std::move(departure), now, out);
}

void AgentCore::On(const GuardianLost& event, MonoTime now, Effects& out) {
  for (Worker& worker : workers_) worker.alive = false;
  out.push_back(Announce{Announce::Level::kError, "guardian_lost", event.reason});
  departure_ = Departure{.reason = absl::StrCat(options_.node.name, " left: ", event.reason)};
  if (phase_ == NodePhase::kStopping) {
    if (after_ != After::kFinish) after_ = After::kLeave;
    GroundReached(now, out);
    return;
  }
  Report(now, out);
  Conclude({.exit_code = kExitFailure, .reason = departure_->reason}, out);
}

void AgentCore::On(const Tick&, MonoTime now, Effects& out) {
  if (phase_ == NodePhase::kIdle) return;
  if (phase_ == NodePhase::kStopping && now >= rung_deadline_) ClimbLadder(now, out);
  if (phase_ == NodePhase::kDone) return;
  EndThoseThatDoNotCome(now, out);
  if (wish_ && !departure_ && !outcome_ && now >= wish_->patience_ends) {
    GiveUpWish(now, out);
    if (phase_ == NodePhase::kDone) return;
  }
  if (now >= ServerDeadline()) {
    GiveUpOnServer(now, out);
    return;
  }
  const bool due = now >= last_sent_ + options_.lease.renew_interval;
  if (link_up_ && due && phase_ != NodePhase::kReserving) Report(now, out);
}

// --- Directives

void AgentCore::Obey(const Wait& wait, MonoTime, Effects& out) {
  if (phase_ != NodePhase::kJoining && phase_ != NodePhase::kWaiting &&
      phase_ != NodePhase::kReporting)
    return;
  if (wait.text == shown_status_) return;
  shown_status_ = wait.text;
  out.push_back(ShowStatus{wait.text});
}

void AgentCore::Obey(const RunRound& run, MonoTime now, Effects& out) {
  const Assignment& assignment = run.assignment;
  if (phase_ != NodePhase::kJoining || assignment.round <= round_) return;
  round_ = assignment.round;
  num_nodes_ = assignment.num_nodes;
  past_.attempts = std::max(past_.attempts, assignment.restart_count + 1);
  past_.restarts_used = std::max(past_.restarts_used, assignment.restarts_used);
  failures_.clear();
  stop_at_.reset();
  unkillable_pids_.clear();
  ladder_started_ = false;
  workers_round_ = round_;
  const std::vector<LocalRank> kept = Kept();
  const std::vector<Worker> parked = std::exchange(workers_, {});
  for (int i = 0; i < assignment.local_world_size; ++i)
    workers_.push_back({.local_rank = LocalRank(i)});
  for (const Worker& worker : parked) {
    if (!worker.is_parked()) continue;
    // Until it has heard of this round it still survives, and awaits one.
    Worker& place = workers_.at(worker.local_rank.value());
    place.pid = worker.pid;
    place.survives = place.awaits_round = true;
  }
  Enter(NodePhase::kRunning);
  out.push_back(ShowStatus{""});
  out.push_back(StartWorkers{assignment, kept});
  Report(now, out);
}

void AgentCore::Obey(const StopRound& stop, MonoTime now, Effects& out) {
  if (departure_) return;
  if (stop.round > round_ && (phase_ == NodePhase::kJoining || phase_ == NodePhase::kReserving)) {
    // The round ended before its assignment reached us. Until we say that we know, the rendezvous
    // counts us as still in it (its invariant R8).
    round_ = stop.round;
    if (phase_ == NodePhase::kJoining) Report(now, out);
    return;
  }
  if (stop.round != round_) return;
  if (wish_ && !outcome_) {  // another round is not for this node
    Depart(wish_->departure, now, out);
    return;
  }
  const After after = stop.cause == StopCause::kJobFailed ? After::kAsk : After::kJoin;
  job_failed_ = after == After::kAsk ? std::optional(stop) : std::nullopt;
  const absl::Duration full = options_.settings.shutdown_timeout;
  const absl::Duration grace = stop.peer_lost ? std::min(full, options_.lost_peer_grace) : full;
  switch (phase_) {
    case NodePhase::kRunning:
      out.push_back(Announce{Announce::Level::kInfo, "stopping", stop.reason});
      BeginStop(after, SIGTERM, grace, now, out, after == After::kJoin ? stop.reason : "");
      return;
    case NodePhase::kStopping:
      if (after_ == After::kAsk || after_ == After::kWait) {
        if (after == After::kJoin) {
          out.push_back(Announce{Announce::Level::kInfo, "restarting", stop.reason});
        }
        after_ = after;
      }
      EndLingering(now, out);
      return;
    case NodePhase::kWaiting:
      out.push_back(Announce{Announce::Level::kInfo, "stopping", stop.reason});
      if (after == After::kJoin) {
        JoinAgain(out);
      } else {
        Enter(NodePhase::kReporting);
        Report(now, out);
      }
      return;
    case NodePhase::kReporting:
      if (after == After::kJoin) {
        out.push_back(Announce{Announce::Level::kInfo, "restarting", stop.reason});
        JoinAgain(out);
      }
      return;
    default:
      return;
  }
}

void AgentCore::Obey(const EndJob& end, MonoTime now, Effects& out) {
  if (departure_) return;
  // What else ends with 0 says why by itself: the program has finished.
  const bool waits = phase_ == NodePhase::kJoining || phase_ == NodePhase::kReserving;
  if (end.outcome.exit_code == 0 && (waits || (stop_at_ && phase_ == NodePhase::kWaiting))) {
    out.push_back(Announce{Announce::Level::kInfo, "ended", end.outcome.reason});
  }
  EndWith(end.outcome, now, out);
}

void AgentCore::Obey(const Refuse& refuse, MonoTime now, Effects& out) {
  if (departure_) return;
  const std::string why(refuse.status.message());
  const bool is_forgotten = refuse.status.code() == absl::StatusCode::kAborted ||
                            refuse.status.code() == absl::StatusCode::kUnavailable;
  if (is_forgotten && job_failed_ && !outcome_) {
    EndAsTold("was started again, and does not know how the job ended", now, out);
    return;
  }
  if (refuse.status.code() == absl::StatusCode::kAborted) {
    NoteAttended(now, out);
    BeginAnew(why, now, out);
    return;
  }
  if (refuse.status.code() == absl::StatusCode::kUnavailable) {
    // A server without a record of us counts our time itself. Where no worker is at stake, and only
    // the outcome is waited for, it is not the one to wait for.
    if (phase_ != NodePhase::kReporting) last_heard_ = now;
    if (phase_ == NodePhase::kJoining && round_ == kNoRound) {
      Obey(Wait{why}, now, out);
      return;
    }
    NoteUnattended("job_unrecorded", why, out);
    return;
  }
  if (IsStranger(refuse)) {
    NoteUnattended("rendezvous_refuses",
                   absl::StrCat(why, "; it knew this node before, so we try again"), out);
    return;
  }
  EndWith({.exit_code = ExitCodeOf(refuse.status), .reason = why}, now, out);
}

bool AgentCore::IsStranger(const Refuse& refuse) const {
  return was_accepted_ && refuse.status.code() != absl::StatusCode::kFailedPrecondition;
}

void AgentCore::BeginAnew(const std::string& why, MonoTime now, Effects& out) {
  if (phase_ == NodePhase::kStopping && instance_ == Instance()) return;  // told before
  if (wish_ && !outcome_) {  // another round is not for this node
    Depart(wish_->departure, now, out);
    return;
  }
  out.push_back(Announce{Announce::Level::kWarning, "stale", why});
  instance_ = Instance();
  // Nobody else has charged it: the server that would have has lost its state.
  if (!failures_.empty()) ++past_.restarts_used;
  if (phase_ == NodePhase::kRunning) {
    BeginStop(After::kJoin, SIGTERM, options_.settings.shutdown_timeout, now, out);
  } else if (phase_ == NodePhase::kStopping) {
    if (after_ == After::kFinish) return;
    after_ = After::kJoin;
    EndLingering(now, out);
    EndSurvivors(now, out);
  } else {
    after_ = After::kJoin;
    if (!EndSurvivors(now, out) && phase_ != NodePhase::kReserving) JoinAgain(out);
  }
}

// --- The rendezvous

absl::Status AgentCore::MayPublish(MonoTime now) const {
  if (!link_up_) {
    return absl::UnavailableError(
        absl::StrCat("not now: there is no connection to ", options_.server));
  }
  if (!unattended_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("not now: ", options_.server, " does not serve this node"));
  }
  const LeaseSettings lease = LeaseOf(options_.lease, num_nodes_);
  if (now < answered_ + lease.duration - lease.margin) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("not now: ", options_.server, " has not answered ", options_.node.name, " for ",
                   absl::FormatDuration(absl::Trunc(now - answered_, absl::Milliseconds(100))),
                   ", and may have given its place to another"));
}

void AgentCore::NoteAttended(MonoTime now, Effects& out) {
  if (!unattended_.empty()) {
    out.push_back(Announce{Announce::Level::kInfo, "rendezvous_attended",
                           absl::StrCat(options_.server, " serves this node again, after ",
                                        absl::FormatDuration(absl::Trunc(
                                            now - last_heard_, absl::Milliseconds(100))))});
    unattended_.clear();
  }
  was_accepted_ = true;
  last_heard_ = now;
}

// Said once for each reason, not at each try.
void AgentCore::NoteUnattended(const std::string& event, const std::string& why, Effects& out) {
  const bool is_news = unattended_ != event;
  unattended_ = event;
  if (is_news) out.push_back(Announce{Announce::Level::kWarning, event, why});
}

MonoTime AgentCore::ServerDeadline() const {
  if (options_.hosts_server || phase_ == NodePhase::kIdle || outcome_ || departure_) {
    return MonoTime::InfiniteFuture();
  }
  if (!heard_server_) return last_heard_ + options_.settings.join_timeout;
  if (phase_ == NodePhase::kReporting) return last_heard_ + options_.read_timeout;
  return last_heard_ + options_.settings.orphan_timeout;
}

void AgentCore::GiveUpOnServer(MonoTime now, Effects& out) {
  if (!heard_server_) {
    EndWith({.exit_code = kExitNodesMissing,
             .reason = absl::StrCat("could not reach ", options_.server, " within ",
                                    absl::FormatDuration(options_.settings.join_timeout), ": ",
                                    link_detail_.empty() ? "no answer" : link_detail_,
                                    ". Is the node that hosts it started, and the port open?")},
            now, out);
    return;
  }
  const std::string silence = absl::StrCat(
      "no answer for ", absl::FormatDuration(absl::Trunc(now - last_heard_, absl::Seconds(1))),
      " (", link_detail_, ")");
  if (job_failed_) {
    EndAsTold(absl::StrCat("is lost: ", silence), now, out);
    return;
  }
  JobOutcome outcome{
      .exit_code = kExitServerLost,
      .reason = absl::StrCat("lost ", options_.server, ": ", silence,
                             "; run musterd elsewhere for a rendezvous that outlives a node")};
  if (!failures_.empty()) {
    for (const TimedFailure& f : failures_) outcome.failures.push_back(f.failure);
    outcome.root_cause = failures_.front().failure;
    outcome.exit_code = ExitCodeOf(*outcome.root_cause);
  }
  EndWith(std::move(outcome), now, out);
}

void AgentCore::EndAsTold(const std::string& why_no_more, MonoTime now, Effects& out) {
  JobOutcome outcome{
      .exit_code = job_failed_->exit_code,
      .reason = absl::StrCat(job_failed_->reason, "; ", options_.server, " ", why_no_more)};
  for (const TimedFailure& f : failures_) outcome.failures.push_back(f.failure);
  EndWith(std::move(outcome), now, out);
}

AgentPhase AgentCore::ReportedPhase() const {
  if (departure_) return AgentPhase::kLeaving;
  switch (phase_) {
    case NodePhase::kRunning:
      return AgentPhase::kRunning;
    case NodePhase::kStopping:
      return failures_.empty() ? AgentPhase::kRunning : AgentPhase::kFailed;
    case NodePhase::kWaiting:
      return AgentPhase::kSucceeded;
    case NodePhase::kReporting:
      return AgentPhase::kStopped;
    default:
      return AgentPhase::kJoining;
  }
}

AgentReport AgentCore::MakeReport(MonoTime now) {
  AgentReport report{.sequence = ++sequence_,
                     .phase = ReportedPhase(),
                     .round = round_,
                     .instance = instance_,
                     .num_nodes = num_nodes_,
                     .past = past_,
                     .node = node_,
                     .settings = options_.settings,
                     .unkillable_pids = unkillable_pids_,
                     .departure = departure_,
                     .stop_floor = StopFloor()};
  if (wish_ && !departure_) {
    report.stop_wish = StopWish{.signal = wish_->departure.signal,
                                .drain_me = wish_->drain_me,
                                .reason = wish_->departure.reason};
  }
  for (const TimedFailure& f : failures_) {
    report.failures.push_back(f.failure);
    report.failures.back().age = now - f.at;
  }
  return report;
}

void AgentCore::Report(MonoTime now, Effects& out) {
  last_sent_ = now;
  last_reported_round_ = round_;
  out.push_back(SendReport{MakeReport(now)});
  unanswered_.emplace_back(sequence_, now);
  if (unanswered_.size() > kMaxUnanswered) unanswered_.pop_front();
}

int AgentCore::NumRunning() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const Worker& w) { return w.alive && !w.is_parked(); }));
}

int AgentCore::NumAlive() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.alive; }));
}

void AgentCore::Enter(NodePhase phase) {
  MUSTER_CHECK(IsAllowed(phase_, phase));
  phase_ = phase;
}

void AgentCore::AnnounceFailure(const WorkerFailure& failure, Effects& out) const {
  std::string text = absl::StrFormat("rank %d (local rank %d, pid %d) %s", failure.rank.value(),
                                     failure.local_rank.value(), failure.pid, HowItEnded(failure));
  const auto num_survivors = std::count_if(workers_.begin(), workers_.end(),
                                           [](const Worker& w) { return w.alive && w.survives; });
  if (const auto num_stopped = NumAlive() - num_survivors; num_stopped > 0) {
    absl::StrAppend(&text, "; stopping the other ", num_stopped, " on ", options_.node.name);
  }
  if (num_survivors > 0) {
    absl::StrAppend(&text, "; ", num_survivors, " on ", options_.node.name,
                    " would go on in the next round");
  }
  out.push_back(Announce{Announce::Level::kError, "worker_failed", std::move(text)});
}

}  // namespace muster::agent
