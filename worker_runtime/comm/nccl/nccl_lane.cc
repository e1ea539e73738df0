#include "worker_runtime/comm/nccl/nccl_lane.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::comm {
namespace {

// CUDA and NCCL offer nothing to wait for together with new calls.
constexpr absl::Duration kPollInterval = absl::Microseconds(20);
constexpr absl::Duration kFlushTime = absl::Milliseconds(700);
// NCCL waits for what is on the device before its calls too.
constexpr absl::Duration kRevokeTime = absl::Seconds(10);

}  // namespace

NcclLane::NcclLane(NcclLaneOptions options, DeviceStream stream, std::unique_ptr<NcclRanks> ranks)
    : options_(std::move(options)),
      stream_(std::move(stream)),
      ranks_(std::move(ranks)),
      thread_([this] { Run(); }) {}

NcclLane::~NcclLane() {
  BeginClose();
  if (thread_.joinable()) thread_.join();
}

void NcclLane::BeginClose() {
  base::MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

std::unique_ptr<NcclRanks> NcclLane::GiveUp() {
  {
    base::MutexLock lock(mu_);
    gives_up_ = true;
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  return std::move(ranks_);
}

bool NcclLane::Push(Call& call) { return PushAs(call, /*is_launch=*/false); }
bool NcclLane::PushLaunch(Call& call) { return PushAs(call, /*is_launch=*/true); }

bool NcclLane::PushAs(Call& call, bool is_launch) {
  base::MutexLock lock(mu_);
  if (queue_.size() >= kMaxQueued) return false;
  const bool stands_in_line = options_.order != nullptr && !is_launch;
  queue_.push_back({.call = std::move(call),
                    .place = stands_in_line ? options_.order->Take() : 0,
                    .is_launch = is_launch,
                    .task = std::nullopt});
  changed_.NotifyAll();
  return true;
}

absl::Status NcclLane::RunBetweenCalls(std::string name,
                                       std::function<absl::Status(NcclRanks& ranks)> body) {
  const LaneTask task(std::move(name), [this, body = std::move(body)]() -> absl::Status {
    return ranks_ == nullptr ? absl::InternalError("this lane is not connected") : body(*ranks_);
  });
  {
    base::MutexLock lock(mu_);
    if (queue_.size() >= kMaxQueued) {
      return absl::ResourceExhaustedError("too many operations are waiting");
    }
    queue_.push_back({.call = task.AsCall(), .task = task});
    changed_.NotifyAll();
  }
  return task.Wait();
}

bool NcclLane::StandsInLine(const Queued& queued) const {
  return options_.order != nullptr && !queued.is_launch && !queued.task.has_value();
}

void NcclLane::Wake() {
  base::MutexLock lock(mu_);
  woken_ = true;
  changed_.NotifyAll();
}

bool NcclLane::IsTurnOfQueued() {
  if (queue_.empty()) return false;
  if (queue_.front().task.has_value()) return running_.empty() && !is_posting_;
  return !StandsInLine(queue_.front()) || options_.order->IsFirst(queue_.front().place);
}

void NcclLane::Leave(const Queued& queued) {
  if (StandsInLine(queued)) options_.order->Leave(queued.place);
}

bool NcclLane::WaitForWork() {
  base::MutexLock lock(mu_);
  if ((!running_.empty() || !queue_.empty()) && !closed_ && !woken_) {
    const bool can_start = IsTurnOfQueued() && !is_posting_ && running_.size() < kMaxRunning;
    if (!can_start) changed_.WaitUntil(mu_, MonoNow() + kPollInterval);
  }
  while (running_.empty() && queue_.empty() && !closed_ && !woken_) {
    changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
  }
  woken_ = false;
  return !closed_;
}

void NcclLane::Run() {
  UseDevice(options_.device);
  while (WaitForWork()) {
    if (const absl::Status failure = options_.failure(); !failure.ok()) {
      Stop();
      EndAll(failure);
      continue;
    }
    if (const absl::Status status = Advance(); !status.ok()) {
      options_.on_trouble(running_.front().run->call(), status);
    }
    Watch();
  }
  bool gives_up = false;
  {
    base::MutexLock lock(mu_);
    gives_up = gives_up_;
  }
  if (gives_up || !running_.empty()) Stop();
  EndAll(options_.failure());
  if (aborts_.joinable()) aborts_.join();
  // Here, where the device is the current one.
  if (ranks_ != nullptr && !gives_up) ranks_->Close(MonoNow() + kFlushTime);
  if (!gives_up) ranks_.reset();
  stream_.reset();
}

// NCCL kills what runs at once, and then waits until every graph is gone that names the
// communicator (2.26 and later, commDestroySync in its src/init.cc); who has the graph lets go of
// it once its launch is told to have failed, by EndAll. One that was revoked it frees without that
// wait, so those that graphs may name are not revoked.
void NcclLane::Stop() {
  if (ranks_ == nullptr || aborts_.joinable()) return;
  if (!has_captured_) {
    return options_.revokes ? ranks_->Revoke(MonoNow() + kRevokeTime) : ranks_->Abort("it failed");
  }
  aborts_ = std::thread([this] {
    UseDevice(options_.device);
    ranks_->Abort("calls of it were captured");
  });
}

void NcclLane::EndPosting() {
  is_posting_ = false;
  if (options_.order != nullptr) options_.order->Leave(posting_);
  NcclRun& run = *running_.back().run;
  if (const absl::Status status = run.AfterPost(); !status.ok()) {
    return options_.on_trouble(run.call(), status);
  }
  if (!run.call().captured) return;
  const Running captured = std::move(running_.back());
  running_.pop_back();
  captured.run->call().Finish(absl::OkStatus());
}

absl::Status NcclLane::AskWhetherPosted() {
  if (!is_posting_) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const bool is_ready, ranks_->IsReady());
  if (is_ready) EndPosting();
  return absl::OkStatus();
}

// An error is of the oldest operation that runs.
absl::Status NcclLane::Advance() {
  MUSTER_RETURN_IF_ERROR(AskWhetherPosted());
  if (!options_.failure().ok()) return absl::OkStatus();
  if (!is_posting_ && running_.size() < kMaxRunning) {
    if (!StartNext()) return absl::OkStatus();
    // Most are posted by now: sleeping first would hold up those that wait for it.
    MUSTER_RETURN_IF_ERROR(AskWhetherPosted());
    if (!options_.failure().ok()) return absl::OkStatus();
  }
  if (running_.empty() || (is_posting_ && running_.size() == 1)) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(FinishFront());
  if (running_.empty() || is_posting_) return absl::OkStatus();
  return ranks_->IsReady().status();
}

std::optional<NcclLane::Queued> NcclLane::TakeQueued() {
  base::MutexLock lock(mu_);
  if (queue_.empty()) return std::nullopt;
  Queued queued = std::move(queue_.front());
  queue_.pop_front();
  return queued;
}

bool NcclLane::StartNext() {
  {
    base::MutexLock lock(mu_);
    if (!IsTurnOfQueued()) return true;
  }
  std::optional<Queued> queued = TakeQueued();
  if (!queued.has_value()) return true;
  Call& call = queued->call;
  if (queued->task.has_value()) {
    queued->task->Run();
    return true;
  }
  if (ranks_ == nullptr) {
    if (call.captured) {
      call.Finish(absl::FailedPreconditionError(
          "the two ranks of a transfer that is captured are not connected: transfer before"));
      Leave(*queued);
      return true;
    }
    if (!Connect(*queued)) return false;
  }
  const NcclPlace place{.ranks = *ranks_,
                        .stream = *stream_,
                        .rank = options_.rank,
                        .size = options_.size,
                        .peer = options_.peer};
  if (queued->is_launch) {
    WatchLaunch(std::move(call), place);
    return true;
  }
  call.MarkStarted();
  posting_ = queued->place;
  has_captured_ = has_captured_ || call.captured;
  running_.push_back(
      {.run = std::make_unique<NcclRun>(std::move(call), place), .since = MonoNow()});
  is_posting_ = true;
  NcclRun& run = *running_.back().run;
  const absl::Status status = run.Post();
  if (!status.ok()) options_.on_trouble(run.call(), status);
  return status.ok();
}

bool NcclLane::Connect(const Queued& queued) {
  absl::StatusOr<std::unique_ptr<NcclRanks>> ranks = options_.connect(queued.call.deadline);
  if (ranks.ok()) {
    ranks_ = *std::move(ranks);
    return true;
  }
  options_.on_trouble(queued.call, ranks.status());
  queued.call.Finish(options_.failure());
  Leave(queued);
  return false;
}

void NcclLane::WatchLaunch(Call call, const NcclPlace& place) {
  auto run = std::make_unique<NcclRun>(std::move(call), place, /*is_launched=*/true);
  const absl::Status status = run->FollowLaunch();
  running_.push_back({.run = std::move(run), .since = MonoNow()});
  if (!status.ok()) options_.on_trouble(running_.back().run->call(), status);
}

absl::Status NcclLane::FinishFront() {
  while (running_.size() > (is_posting_ ? 1 : 0)) {
    NcclRun& run = *running_.front().run;
    MUSTER_ASSIGN_OR_RETURN(const bool is_done, run.IsDone());
    if (!is_done) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const bool is_finished, run.Proceed());
    if (!is_finished) return absl::OkStatus();
    const Running finished = std::move(running_.front());
    running_.pop_front();
    finished.run->call().Finish(absl::OkStatus());
  }
  return absl::OkStatus();
}

void NcclLane::Watch() {
  const MonoTime now = MonoNow();
  for (Running& each : running_) {
    const Call& call = each.run->call();
    if (call.deadline <= now) {
      return options_.on_trouble(call, absl::DeadlineExceededError("its deadline passed"));
    }
  }
  std::optional<Call> late;
  {
    base::MutexLock lock(mu_);
    for (const Queued& queued : queue_) {
      if (queued.call.deadline <= now) late = queued.call;
    }
  }
  if (late.has_value()) {
    return options_.on_trouble(*late, absl::DeadlineExceededError("its deadline passed"));
  }
  if (running_.empty()) return;
  Running& oldest = running_.front();
  if (oldest.is_suspected || now < oldest.since + kSuspiciousTime) return;
  oldest.is_suspected = true;
  options_.on_suspicion(oldest.run->call());
}

// The ranks are revoked or aborted: no kernel touches a buffer any more, so that waiters may be
// told.
void NcclLane::EndAll(const absl::Status& failure) {
  std::deque<Running> running;
  running.swap(running_);
  if (is_posting_ && options_.order != nullptr) options_.order->Leave(posting_);
  is_posting_ = false;
  for (const Running& each : running) each.run->call().Finish(failure);
  while (std::optional<Queued> queued = TakeQueued()) {
    queued->call.Finish(failure);
    Leave(*queued);
  }
}

}  // namespace muster::comm
