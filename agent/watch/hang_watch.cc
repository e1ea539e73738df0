#include "agent/watch/hang_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/words.h"
#include "proto/io/log.h"
#include "rendezvous/verdict/cause.h"

namespace muster::agent {

namespace {

// From then on PyTorch is asked every second.
constexpr absl::Duration kSilenceToAskAbout = absl::Seconds(3);

verdict::ToldBy WhoTells(const WatchedRank& rank) {
  if (!rank.board.groups.empty()) return verdict::ToldBy::kOperations;
  if (rank.torch) return verdict::ToldBy::kTorch;
  return rank.board.pid != 0 ? verdict::ToldBy::kMarks : verdict::ToldBy::kUnknown;
}

RankReport MakeReport(const WatchedRank& rank) {
  // Nothing need be said of programs that mark nothing.
  const bool is_marked = rank.board.pid != 0;
  return {.rank = rank.rank,
          .pid = rank.pid,
          .phase = is_marked ? verdict::PhaseInWords(rank.board.phase, rank.board.step) : "",
          .step = rank.board.step,
          .silent_for = rank.silent_for,
          .told_by = WhoTells(rank),
          .doing = rank.doing,
          .hold = rank.hold,
          .python = rank.torch ? rank.torch->python.frames : std::vector<std::string>()};
}

bool IsInAStep(const std::vector<verdict::Pulse>& pulses) {
  return std::any_of(pulses.begin(), pulses.end(), [](const verdict::Pulse& pulse) {
    return pulse.is_told && (pulse.num_steps > 0 || pulse.has_operations);
  });
}

const WatchedRank* Find(const std::vector<WatchedRank>& watched, int rank) {
  for (const WatchedRank& each : watched) {
    if (each.rank == rank) return &each;
  }
  return nullptr;
}

}  // namespace

HangWatch::HangWatch(asio::io_context& loop, HangWatchOptions options,
                     std::function<void(int pid, const std::string& why)> end_worker,
                     std::function<void(verdict::NodeWord)> tell_server)
    : options_(std::move(options)),
      end_worker_(std::move(end_worker)),
      tell_server_(std::move(tell_server)),
      mailbox_(loop),
      timer_(loop),
      abort_timer_(loop),
      core_(options_.hang_timeout),
      torch_(loop),
      looks_(loop),
      kernel_log_(KernelLog::Open()),
      reports_(options_.report_directory) {}

HangWatch::~HangWatch() { mailbox_.Close(); }

void HangWatch::StartRound(WatchedRound round) {
  ForgetAborts();
  round_ = std::move(round);
  workers_.clear();
  core_.StartRound();
  torch_.StartRound(round_.first_rank, round_.torch_servers);
  gatherings_.StartRound();
  is_asking_store_ = false;
  is_somebody_silent_ = false;
  quiet_ranks_.StartRound();
  pace_meter_.StartRound();
  slow_ = {};
  interfaces_ = ConnectedInterfaces();
  kernel_log_.Forget();
  is_watching_ = options_.is_on;
  gathers_evidence_ = false;
  saying_.notice = 0;
  saying_.standing = verdict::StandingKind::kNone;
  step_rate_ = {};
  if (!is_watching_) return;
  Arm();
  // The server asks nobody of whom it has heard none, and the first rank may abort within a second.
  tell_server_(MakeSummary());
}

void HangWatch::OnSpawned(int local_rank, int pid) {
  workers_[local_rank] = {.pid = pid};
  if (workers_.size() == round_.boards.size()) AddMilestone(kStarted);
}

void HangWatch::OnEnded(int local_rank, bool is_well) {
  if (is_well) core_.Finish(round_.first_rank + local_rank);
  workers_[local_rank].has_ended = true;
  const bool all = std::all_of(workers_.begin(), workers_.end(),
                               [](const auto& entry) { return entry.second.has_ended; });
  if (all) AddMilestone(kStopped);
}

void HangWatch::OnStopping() {
  is_watching_ = false;
  timer_.cancel();
}

void HangWatch::Arm() {
  timer_.expires_after(absl::ToChronoNanoseconds(verdict::kWatchInterval));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error || !is_watching_) return;
    Tick();
    if (is_watching_) Arm();
  });
}

void HangWatch::Tick() {
  const MonoTime now = MonoNow();
  torch_.Tick(now, is_somebody_silent_);
  AskStore();
  const std::vector<verdict::Pulse> pulses = TakePulses();
  if (incident_ && incident_->round != round_.round && IsInAStep(pulses)) {
    AddMilestone(kFirstStep);
    log::Write(
        log::Level::kInfo, "hang_timeline",
        absl::StrCat("the job makes progress again after the hang; ", TimelineInWords(*incident_)),
        {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
    incident_.reset();
  }
  const bool is_suspicious =
      core_.Listen(pulses, now, verdict::SilencesOf(gatherings_.At(now), core_.mute()));
  is_somebody_silent_ =
      is_suspicious || std::any_of(pulses.begin(), pulses.end(), [&](const auto& pulse) {
        return core_.SilenceOf(pulse.rank) >= kSilenceToAskAbout;
      });
  LookForQuietRanks(pulses, now);
  const bool has_paces = pace_meter_.Listen(pulses, now);
  step_rate_.Listen(Progress().step, now);
  tell_server_(MakeSummary());
  if (round_.num_nodes > 1) return;
  if (has_paces) {
    const auto change = slow_.by_marks.OnWindow(pace_meter_.paces());
    if (change) Obey(verdict::SaySlow{round_.round, change->slow.empty(), change->text});
  }
  LookForLateRanks(now);
  if (!is_suspicious || gathers_evidence_) return;
  const std::optional<std::vector<WatchedRank>> watched = LookAtAll(now);
  if (!watched) return;
  verdict::Evidence evidence =
      MakeEvidence(round_.round, round_.world_size, *watched, torch_.members());
  verdict::AddGatherings(gatherings_.At(now), evidence);
  for (const verdict::WatchEffect& effect : core_.Judge(verdict::Diagnose(evidence))) {
    std::visit([&](const auto& e) { Perform(e, *watched); }, effect);
  }
}

// On one node all clocks are one.
void HangWatch::LookForLateRanks(MonoTime now) {
  const int64_t window = torch_.num_arrival_windows();
  if (std::exchange(slow_.arrival_window, window) == window) return;
  const auto text = slow_.by_calls.OnWindow(
      {{.answered_at = now, .error = {}, .groups = torch_.ArrivalsBefore(now)}});
  if (text) Obey(verdict::SaySlow{round_.round, /*is_over=*/false, *text});
}

void HangWatch::AskStore() {
  if (!round_.ask_store || std::exchange(is_asking_store_, true)) return;
  round_.ask_store([mailbox = mailbox_, this, round = round_.round](auto gatherings) {
    // Runs only while this object lives.
    mailbox.Post([this, round, gatherings = std::move(gatherings)]() mutable {
      if (round != round_.round) return;
      is_asking_store_ = false;
      gatherings_.Listen(std::move(gatherings), MonoNow());
    });
  });
}

std::vector<verdict::Pulse> HangWatch::TakePulses() const {
  std::vector<verdict::Pulse> pulses;
  for (size_t i = 0; i < round_.boards.size(); ++i) {
    if (!round_.boards[i]) continue;
    pulses.push_back(MakePulse(round_.first_rank + static_cast<int>(i), round_.boards[i]->board(),
                               torch_.Find(static_cast<int>(i))));
  }
  return pulses;
}

std::optional<std::vector<WatchedRank>> HangWatch::LookAtAll(MonoTime now) {
  std::vector<WatchedRank> watched;
  for (auto& [local_rank, worker] : workers_) {
    watched.push_back(LookAt(local_rank, worker, now));
    if (worker.look && IsTraced(*worker.look)) return std::nullopt;
  }
  // Where PyTorch tells of some, nothing is known of who tells nothing.
  const bool some_tell = std::any_of(watched.begin(), watched.end(), [](const WatchedRank& rank) {
    return rank.torch.has_value();
  });
  for (WatchedRank& rank : watched) {
    rank.is_mute = !rank.torch && rank.board.pid == 0;
    if (!rank.is_mute) continue;
    const auto watched_for = core_.mute().find(rank.rank);
    if (watched_for != core_.mute().end()) rank.silent_for = watched_for->second;
    if (some_tell && rank.life == verdict::Life::kRunning) {
      rank.life = verdict::Life::kUnreachable;
    }
  }
  return watched;
}

// Its program may run in a process that the worker has started.
void HangWatch::AddTorch(int local_rank, WatchedRank& out) const {
  const TorchRank* torch = torch_.Find(local_rank);
  if (torch == nullptr) return;
  out.torch = *torch;
  if (out.pid != 0) out.pid = torch->pid;
}

bool HangWatch::IsBusy(int pid, Worker& worker, MonoTime now) {
  constexpr absl::Duration kPause = absl::Seconds(3);
  const std::optional<ProcessUse> use = UseOfTree(pid);
  const std::optional<ProcessUse> before = std::exchange(worker.use, use);
  const absl::Duration elapsed =
      worker.look_before ? now - worker.look_before->at : absl::ZeroDuration();
  // An older one is of a silence before this.
  const bool is_recent = elapsed <= 2 * kPause;
  if (agent::IsBusy(*worker.look, use, is_recent ? before : std::nullopt, elapsed)) {
    worker.busy_until = now + kPause;
  }
  return now < worker.busy_until;
}

WatchedRank HangWatch::LookAt(int local_rank, Worker& worker, MonoTime now) {
  const int rank = round_.first_rank + local_rank;
  WatchedRank out{.rank = rank,
                  .pid = worker.has_ended ? 0 : worker.pid,
                  .node = options_.node,
                  .silent_for = core_.SilenceOf(rank)};
  AddTorch(local_rank, out);
  std::optional<ProcessLook> look;
  if (!worker.has_ended) look = LookAtProcess(out.pid, now);
  worker.look_before = std::exchange(worker.look, look);
  out.is_busy = look && IsBusy(out.pid, worker, now);
  if (!look) {
    out.life = verdict::Life::kEnded;
    out.doing = "ended";
  } else {
    out.life = look->state == 'T' ? verdict::Life::kStopped : verdict::Life::kRunning;
    out.doing = InWords(*look, worker.look_before);
    const bool is_mute = out.torch && !out.torch->answers;
    if (out.life == verdict::Life::kRunning && is_mute) out.life = verdict::Life::kNoReply;
    out.hold = HoldOf(*look, worker.look_before);
  }
  if (!worker.has_ended) out.fault = XidsOf(kernel_log_.Lines(), out.pid);
  const std::vector<std::string> connected = ConnectedInterfaces();
  for (const std::string& name : interfaces_) {
    if (!std::binary_search(connected.begin(), connected.end(), name)) {
      out.fault = absl::StrCat("network interface ", name, " of its node is down");
    }
  }
  const size_t index = static_cast<size_t>(local_rank);
  if (index >= round_.boards.size() || !round_.boards[index]) {
    out.life = out.life == verdict::Life::kRunning ? verdict::Life::kUnreachable : out.life;
    return out;
  }
  absl::StatusOr<BoardSnapshot> board = round_.boards[index]->Read();
  if (board.ok()) out.board = *std::move(board);
  return out;
}

// Programs that do not tell where their Python is are read aside.
void HangWatch::Perform(const verdict::Notice& notice, const std::vector<WatchedRank>& watched) {
  constexpr size_t kNamedMax = 4;
  const verdict::Diagnosis& diagnosis = notice.diagnosis;
  const std::vector<int>& ranks =
      diagnosis.culprits.empty() ? diagnosis.waiting : diagnosis.culprits;
  std::vector<RankReport> named;
  for (size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    if (const WatchedRank* rank = Find(watched, ranks[i])) named.push_back(MakeReport(*rank));
  }
  looks_.Take(LookDepth::kPython, std::move(named),
              [this, round = round_.round, text = notice.text, finding = diagnosis.finding,
               number = saying_.notice =
                   ++saying_.num_notices](const std::vector<RankReport>& looked_at) mutable {
                if (!is_watching_ || round != round_.round || saying_.notice != number) return;
                saying_.notice = 0;
                for (const RankReport& rank : looked_at) {
                  absl::StrAppend(&text, "; ", verdict::InWordsWithPython(rank));
                }
                SayThatTheyWait(text, finding);
              });
}

void HangWatch::Perform(const verdict::Recovery& recovery, const std::vector<WatchedRank>&) {
  saying_.notice = 0;
  const bool is_ending = incident_ && incident_->round == round_.round;
  if (!is_ending) SayThatTheyGoOn(recovery.text);
}

void HangWatch::Perform(const verdict::Verdict& verdict, const std::vector<WatchedRank>& watched) {
  gathers_evidence_ = true;
  Incident incident =
      MakeIncident(verdict.diagnosis, verdict.reason, verdict.since_detected, absl::ZeroDuration());
  incident.ranks = MakeReports(watched);
  verdict::MarkToldByStore(gatherings_.At(MonoNow()), incident.ranks);
  // Those at fault first: time may not be enough for all.
  const std::vector<int>& culprits = verdict.diagnosis.culprits;
  std::stable_partition(incident.ranks.begin(), incident.ranks.end(), [&](const RankReport& rank) {
    return std::find(culprits.begin(), culprits.end(), rank.rank) != culprits.end();
  });
  std::vector<RankReport> ranks = std::exchange(incident.ranks, {});
  LookCloser(std::move(ranks),
             [this, round = round_.round, before = WhereTheyAre(), incident = std::move(incident)](
                 std::vector<RankReport> looked_at, bool goes_on) mutable {
               if (!is_watching_ || round != round_.round) return;
               incident.ranks = std::move(looked_at);
               OnEvidence(std::move(incident), goes_on || HaveMovedSince(before));
             });
}

void HangWatch::LookCloser(std::vector<RankReport> ranks, OnCloserLook then) {
  looks_.Take(LookDepth::kStacks, std::move(ranks),
              [this, check = torch_.MakeMoveCheck(),
               then = std::move(then)](std::vector<RankReport> looked_at) mutable {
                torch_.AskIfMoved(std::move(check), [looked_at = std::move(looked_at),
                                                     then = std::move(then)](bool goes_on) mutable {
                  then(std::move(looked_at), goes_on);
                });
              });
}

Incident HangWatch::MakeIncident(verdict::Diagnosis diagnosis, std::string reason,
                                 absl::Duration since_detected, absl::Duration since_decided) {
  detected_at_ = MonoNow() - since_detected;
  return {.run_id = options_.run_id,
          .node = options_.node,
          .round = round_.round,
          .restart_count = round_.restart_count,
          .decided_at = absl::Now() - since_decided,
          .diagnosis = std::move(diagnosis),
          .reason = std::move(reason),
          .timeline = {{std::string(kDetected), absl::ZeroDuration()},
                       {std::string(kDecided), since_detected - since_decided}}};
}

std::vector<RankReport> HangWatch::MakeReports(const std::vector<WatchedRank>& watched) {
  std::vector<RankReport> reports;
  for (const WatchedRank& rank : watched) reports.push_back(MakeReport(rank));
  return reports;
}

// Time has passed: what has moved since is no hang.
void HangWatch::OnEvidence(Incident incident, bool has_moved) {
  gathers_evidence_ = false;
  if (has_moved) {
    SayThatTheyGoOn(absl::StrCat("it goes on: ", incident.diagnosis.Describe()));
    return;
  }
  const std::vector<int> pids = options_.ends_workers ? PidsToEnd(incident) : std::vector<int>();
  incident.diagnosis.cause = verdict::RefineCause(incident.diagnosis, incident.ranks);
  incident.action = verdict::ActionInWords(options_.ends_workers);
  Report(std::move(incident), pids, options_.ends_workers);
}

void HangWatch::Report(Incident incident, const std::vector<int>& pids, bool ends_attempt) {
  report_path_ = reports_.NameNext("hang", round_.restart_count);
  if (round_.network_faults) incident.network_faults = round_.network_faults();
  incident.timeline.push_back({std::string(kReported), MonoNow() - detected_at_});
  log::Write(
      log::Level::kError, "hang",
      absl::StrCat(InWords(incident), "\n  all of it is in ", report_path_),
      {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
  Stand(verdict::StandingKind::kVerdict,
        absl::StrCat(incident.diagnosis.Describe(), "; ", incident.reason));
  TellWhatWasSaid(WatchEvent::kVerdict, saying_.text);
  incident_ = std::move(incident);
  WriteReport();
  const std::string why = absl::StrCat("hang: ", incident_->diagnosis.Describe(), "; ",
                                       incident_->reason, "; see ", report_path_);
  for (const int pid : pids) end_worker_(pid, why);
  if (!ends_attempt) incident_.reset();  // nothing follows from it
}

// Pids of those at fault; where nobody is, of those who wait, since the attempt has to end.
std::vector<int> HangWatch::PidsToEnd(const Incident& incident) const {
  const std::vector<int> pids = PidsOf(incident.diagnosis.culprits);
  return pids.empty() ? PidsOf(incident.diagnosis.waiting) : pids;
}

std::vector<int> HangWatch::PidsOf(const std::vector<int>& ranks) const {
  std::vector<int> pids;
  for (const int rank : ranks) {
    const auto found = workers_.find(rank - round_.first_rank);
    if (found != workers_.end() && !found->second.has_ended) pids.push_back(found->second.pid);
  }
  return pids;
}

// What comes a second time follows from something else: the attempt after the hang has ended too.
void HangWatch::AddMilestone(absl::string_view what) {
  if (incident_ && HasReached(*incident_, what)) incident_.reset();
  if (!incident_) return;
  incident_->timeline.push_back({std::string(what), MonoNow() - detected_at_});
  WriteReport();
}

void HangWatch::WriteReport() { reports_.Write(report_path_, ToJson(*incident_)); }

}  // namespace muster::agent
