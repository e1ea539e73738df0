#include "agent/watch/local_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

// Once a rank has been silent for so long, PyTorch is asked every second.
constexpr absl::Duration kSilenceToAskAbout = absl::Seconds(3);
// A younger look is taken for one of now: what is used in so short a time tells nothing.
constexpr absl::Duration kSameLook = absl::Milliseconds(200);

// A function that calls others is seen in another before that, and one that is called again and
// again by its caller's other lines.
constexpr int kOftenInOneFunction = 10;

hangs::ToldBy WhoTells(const WatchedRank& rank) {
  if (!rank.board.groups.empty()) return hangs::ToldBy::kOperations;
  if (rank.torch) return hangs::ToldBy::kTorch;
  return rank.board.pid != 0 ? hangs::ToldBy::kMarks : hangs::ToldBy::kUnknown;
}

}  // namespace

std::vector<hangs::RankReport> MakeReports(const std::vector<WatchedRank>& watched) {
  std::vector<hangs::RankReport> reports;
  for (const WatchedRank& rank : watched) {
    // Nothing need be said of programs that mark nothing.
    const bool is_marked = rank.board.pid != 0;
    reports.push_back(
        {.rank = rank.rank,
         .pid = rank.pid,
         .phase = is_marked ? hangs::PhaseInWords(rank.board.phase, rank.board.step) : "",
         .step = rank.board.step,
         .silent_for = rank.silent_for,
         .told_by = WhoTells(rank),
         .doing = rank.doing,
         .hold = rank.hold,
         .python = rank.torch ? rank.torch->python.frames : std::vector<std::string>()});
  }
  return reports;
}

LocalRanks::LocalRanks(asio::io_context& loop, std::string node)
    : node_(std::move(node)), mailbox_(loop), torch_(loop), kernel_log_(KernelLog::Open()) {}

LocalRanks::~LocalRanks() { mailbox_.Close(); }

void LocalRanks::StartRound(WatchedRound round) {
  round_ = std::move(round);
  workers_.clear();
  num_ended_well_ = 0;
  silences_.StartRound();
  torch_.StartRound(round_.first_rank, round_.torch_servers);
  gatherings_.StartRound();
  is_asking_store_ = false;
  pace_meter_.StartRound();
  step_rate_ = {};
  interfaces_ = ConnectedInterfaces();
  kernel_log_.Forget();
}

void LocalRanks::OnSpawned(int local_rank, int pid) { workers_[local_rank] = {.pid = pid}; }

void LocalRanks::OnEnded(int local_rank, bool is_well) {
  if (is_well) silences_.Finish(RankOf(local_rank));
  const bool had_ended = std::exchange(workers_[local_rank].has_ended, true);
  if (is_well && !had_ended) ++num_ended_well_;
}

bool LocalRanks::HaveAllEnded() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second.has_ended; });
}

std::vector<hangs::Pulse> LocalRanks::Tick(MonoTime now) {
  torch_.Tick(now, silences_.IsSomebodySilent(kSilenceToAskAbout));
  AskStore();
  std::vector<hangs::Pulse> pulses = TakePulses(now);
  silences_.Listen(pulses, now, hangs::SilencesOf(gatherings_.At(now), silences_.mute()));
  pace_meter_.Listen(pulses, now);
  step_rate_.Listen(Progress().step, now);
  return pulses;
}

void LocalRanks::AskStore() {
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

std::vector<hangs::Pulse> LocalRanks::TakePulses(MonoTime now) const {
  std::vector<hangs::Pulse> pulses;
  for (size_t i = 0; i < round_.boards.size(); ++i) {
    if (!round_.boards[i]) continue;
    pulses.push_back(MakePulse(RankOf(static_cast<int>(i)), round_.boards[i]->board(),
                               torch_.Find(static_cast<int>(i)), now));
  }
  return pulses;
}

// --- How far they are

hangs::NodeSummary LocalRanks::Summarize(MonoTime now) {
  const absl::Duration at_start = hangs::SilenceAtStart(gatherings_.At(now));
  return {.round = round_.round,
          .silent = hangs::Summarize(silences_.Silences()),
          .learned = silences_.Learned(),
          .paces = MakePaces(),
          .silence_at_start = at_start >= hangs::kSilenceTold ? at_start : absl::ZeroDuration(),
          .arrival_window = torch_.num_arrival_windows(),
          .num_ended = num_ended_well_,
          .progress = Progress()};
}

hangs::NodePaces LocalRanks::MakePaces() const {
  hangs::NodePaces paces{.window = pace_meter_.num_windows()};
  for (const hangs::RankPace& pace : pace_meter_.paces()) {
    const int local_rank = pace.rank - round_.first_rank;
    if (local_rank >= hangs::kPacesMax) break;
    paces.own.resize(local_rank + 1);
    paces.own.back() = pace.own;
  }
  return paces;
}

hangs::NodeProgress LocalRanks::Progress() const {
  hangs::NodeProgress progress;
  const std::vector<int64_t> steps = Steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] < 0) continue;
    progress.step = std::max(progress.step, steps[i]);
    if (progress.slowest_rank >= 0 && steps[i] >= progress.slowest_step) continue;
    progress.slowest_step = steps[i];
    progress.slowest_rank = RankOf(static_cast<int>(i));
  }
  if (progress.step >= 0) progress.steps_per_second = step_rate_.per_second();
  return progress;
}

std::vector<int64_t> LocalRanks::Steps() const {
  std::vector<int64_t> steps;
  for (const std::optional<BoardMemory>& board : round_.boards) {
    steps.push_back(board ? StepOf(board->board()) : -1);
  }
  return steps;
}

LocalRanks::Position LocalRanks::Where() {
  const MonoTime now = MonoNow();
  return {TakePulses(now), hangs::MissingAt(gatherings_.At(now))};
}

bool LocalRanks::HaveMovedSince(const Position& before) {
  const Position now = Where();
  for (size_t i = 0; i < std::min(before.pulses.size(), now.pulses.size()); ++i) {
    if (before.pulses[i].token != now.pulses[i].token) return true;
  }
  return before.missing != now.missing;
}

// --- What they look like

std::vector<WatchedRank> LocalRanks::LookAtEach(MonoTime now) {
  std::vector<WatchedRank> watched;
  for (auto& [local_rank, worker] : workers_) watched.push_back(LookAt(local_rank, worker, now));
  return watched;
}

std::optional<std::vector<WatchedRank>> LocalRanks::LookAtAll(MonoTime now) {
  std::vector<WatchedRank> watched = LookAtEach(now);
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.look && IsTraced(*worker.look)) return std::nullopt;
  }
  // Where PyTorch tells of some, nothing is known of who tells nothing.
  const bool some_tell = std::any_of(watched.begin(), watched.end(), [](const WatchedRank& rank) {
    return rank.torch.has_value();
  });
  for (WatchedRank& rank : watched) {
    rank.is_mute = !rank.torch && rank.board.pid == 0;
    if (!rank.is_mute) continue;
    const auto watched_for = silences_.mute().find(rank.rank);
    if (watched_for != silences_.mute().end()) rank.silent_for = watched_for->second;
    if (some_tell && rank.life == hangs::Life::kRunning) {
      rank.life = hangs::Life::kUnreachable;
    }
  }
  return watched;
}

void LocalRanks::AddEvidence(MonoTime now, hangs::NodeDetails& out) {
  const std::optional<std::vector<WatchedRank>> watched = LookAtAll(now);
  out.is_held = !watched.has_value();
  out.evidence = MakeEvidence(round_.round, round_.world_size,
                              watched.value_or(std::vector<WatchedRank>()), torch_.members());
  out.gatherings = gatherings_.At(now);
}

void LocalRanks::NoteUse(int pid, Worker& worker, MonoTime now) {
  constexpr absl::Duration kPause = absl::Seconds(3);
  const std::optional<ProcessUse> use = UseOfTree(pid, CountedThreads::kOwn);
  const std::optional<ProcessUse> before = std::exchange(worker.use, use);
  const absl::Duration elapsed =
      worker.look_before ? now - worker.look_before->at : absl::ZeroDuration();
  // An older one is of a silence before this.
  const bool is_recent = elapsed <= 2 * kPause;
  if (IsBusy(*worker.look, use, is_recent ? before : std::nullopt, elapsed)) {
    worker.busy_until = now + kPause;
  }
}

void LocalRanks::Look(int pid, Worker& worker, MonoTime now) {
  if (worker.has_ended) {
    worker.look.reset();
    return;
  }
  if (worker.look && now - worker.look->at < kSameLook) return;
  worker.look_before = std::exchange(worker.look, LookAtProcess(pid, now, CountedThreads::kOwn));
  if (worker.look) NoteUse(pid, worker, now);
}

// Its program may run in a process that the worker has started.
void LocalRanks::AddTorch(int local_rank, WatchedRank& out) const {
  const TorchRank* torch = torch_.Find(local_rank);
  if (torch == nullptr) return;
  out.torch = *torch;
  if (out.pid != 0) out.pid = torch->pid;
}

std::string LocalRanks::FaultOf(int pid) {
  const std::vector<std::string> connected = ConnectedInterfaces();
  for (const std::string& name : interfaces_) {
    if (!std::binary_search(connected.begin(), connected.end(), name)) {
      return absl::StrCat("network interface ", name, " of its node is down");
    }
  }
  return pid == 0 ? std::string() : XidsOf(kernel_log_.Lines(), pid);
}

WatchedRank LocalRanks::LookAt(int local_rank, Worker& worker, MonoTime now) {
  const int rank = RankOf(local_rank);
  WatchedRank out{.rank = rank,
                  .pid = worker.has_ended ? 0 : worker.pid,
                  .node = node_,
                  .silent_for = silences_.SilenceOf(rank)};
  AddTorch(local_rank, out);
  Look(out.pid, worker, now);
  if (!worker.look) {
    out.life = hangs::Life::kEnded;
    out.doing = "ended";
  } else {
    out.is_busy = now < worker.busy_until;
    out.life = worker.look->state == 'T' ? hangs::Life::kStopped : hangs::Life::kRunning;
    out.doing = InWords(*worker.look, worker.look_before);
    out.loops = out.is_busy && IsComputing(*worker.look, worker.look_before) && out.torch &&
                out.torch->times_in_function >= kOftenInOneFunction;
    const bool is_mute = out.torch && !out.torch->answers;
    if (out.life == hangs::Life::kRunning && is_mute) out.life = hangs::Life::kNoReply;
    out.hold = HoldOf(*worker.look, worker.look_before);
  }
  out.fault = FaultOf(out.pid);
  const size_t index = static_cast<size_t>(local_rank);
  if (index >= round_.boards.size() || !round_.boards[index]) {
    out.life = out.life == hangs::Life::kRunning ? hangs::Life::kUnreachable : out.life;
    return out;
  }
  absl::StatusOr<BoardSnapshot> board = round_.boards[index]->Read();
  if (board.ok()) out.board = *std::move(board);
  return out;
}

std::optional<int> LocalRanks::PidOf(int rank) const {
  const auto found = workers_.find(rank - round_.first_rank);
  if (found == workers_.end() || found->second.has_ended) return std::nullopt;
  return found->second.pid;
}

std::vector<hangs::RankReport> LocalRanks::ReportsOf(const std::vector<int>& ranks) const {
  std::vector<hangs::RankReport> reports;
  for (const int rank : ranks) {
    const std::optional<int> pid = PidOf(rank);
    if (!pid) continue;
    hangs::RankReport report{.rank = rank, .pid = *pid};
    if (const TorchRank* torch = torch_.Find(rank - round_.first_rank)) {
      report.pid = torch->pid;
      report.python = torch->python.frames;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace muster::agent
