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

NcclLane::NcclLane(NcclLaneOptions options, NcclLaneOwner& owner,
                   std::shared_ptr<LaunchOrder> order, DeviceStream stream,
                   std::unique_ptr<NcclRanks> ranks)
    : options_(std::move(options)),
      owner_(owner),
      queue_(std::move(order)),
      stream_(std::move(stream)),
      ranks_(std::move(ranks)),
      thread_([this] { Run(); }) {}

NcclLane::~NcclLane() {
  BeginClose();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<NcclRanks> NcclLane::GiveUp() {
  queue_.Close(LaneQueue::End::kGivenUp);
  thread_.join();
  return std::move(ranks_);
}

absl::Status NcclLane::RunBetweenCalls(std::string name,
                                       std::function<absl::Status(NcclRanks& ranks)> body) {
  const LaneTask task(std::move(name), [this, body = std::move(body)]() -> absl::Status {
    return ranks_ == nullptr ? absl::InternalError("this lane is not connected") : body(*ranks_);
  });
  if (!queue_.PushTask(task)) {
    return absl::ResourceExhaustedError("too many operations are waiting");
  }
  return task.Wait();
}

LaneQueue::UnderWay NcclLane::under_way() const {
  return {.is_idle = runs_.empty(), .has_room = !runs_.is_posting() && runs_.size() < kMaxRunning};
}

void NcclLane::Run() {
  UseDevice(options_.device);
  while (queue_.WaitForWork(under_way(), kPollInterval)) {
    if (const absl::Status failure = owner_.failure(); !failure.ok()) {
      Stop();
      EndAll(failure);
      continue;
    }
    if (const absl::Status status = Advance(); !status.ok()) {
      owner_.OnTrouble(runs_.oldest().call(), status);
    }
    Watch();
  }
  const bool gives_up = queue_.end() == LaneQueue::End::kGivenUp;
  if (gives_up || !runs_.empty()) Stop();
  EndAll(owner_.failure());
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
  queue_.Leave(runs_.EndPosting());
  NcclRun& run = runs_.newest();
  if (const absl::Status status = run.AfterPost(); !status.ok()) {
    return owner_.OnTrouble(run.call(), status);
  }
  if (run.call().captured) runs_.TakeNewest()->call().Finish(absl::OkStatus());
}

absl::Status NcclLane::AskWhetherPosted() {
  if (!runs_.is_posting()) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const bool is_ready, ranks_->IsReady());
  if (is_ready) EndPosting();
  return absl::OkStatus();
}

// An error is of the oldest operation that runs.
absl::Status NcclLane::Advance() {
  MUSTER_RETURN_IF_ERROR(AskWhetherPosted());
  if (!owner_.failure().ok()) return absl::OkStatus();
  if (under_way().has_room) {
    if (!StartNext()) return absl::OkStatus();
    // Most are posted by now: sleeping first would hold up those that wait for it.
    MUSTER_RETURN_IF_ERROR(AskWhetherPosted());
    if (!owner_.failure().ok()) return absl::OkStatus();
  }
  if (runs_.OldestOnStream() == nullptr) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(FinishFront());
  if (runs_.empty() || runs_.is_posting()) return absl::OkStatus();
  return ranks_->IsReady().status();
}

bool NcclLane::StartNext() {
  std::optional<LaneQueue::Item> item = queue_.TakeNext(runs_.empty());
  if (!item.has_value()) return true;
  if (item->task.has_value()) {
    item->task->Run();
    return true;
  }
  if (ranks_ == nullptr) {
    if (item->call.captured) {
      item->call.Finish(absl::FailedPreconditionError(
          "the two ranks of a transfer that is captured are not connected: transfer before"));
      queue_.Leave(item->place);
      return true;
    }
    if (!Connect(*item)) return false;
  }
  const NcclPlace place{.ranks = *ranks_,
                        .stream = *stream_,
                        .rank = options_.rank,
                        .size = options_.size,
                        .peer = options_.peer};
  return Start(*std::move(item), place);
}

bool NcclLane::Start(LaneQueue::Item item, const NcclPlace& place) {
  if (item.is_launch) {
    WatchLaunch(std::move(item.call), place);
    return true;
  }
  item.call.MarkStarted();
  has_captured_ = has_captured_ || item.call.captured;
  NcclRun& run =
      runs_.BeginPosting(std::make_unique<NcclRun>(std::move(item.call), place), item.place);
  const absl::Status status = run.Post();
  if (!status.ok()) owner_.OnTrouble(run.call(), status);
  return status.ok();
}

bool NcclLane::Connect(const LaneQueue::Item& item) {
  absl::StatusOr<std::unique_ptr<NcclRanks>> ranks = options_.connect(item.call.deadline);
  if (ranks.ok()) {
    ranks_ = *std::move(ranks);
    return true;
  }
  owner_.OnTrouble(item.call, ranks.status());
  item.call.Finish(owner_.failure());
  queue_.Leave(item.place);
  return false;
}

void NcclLane::WatchLaunch(Call call, const NcclPlace& place) {
  auto run = std::make_unique<NcclRun>(std::move(call), place, /*is_launched=*/true);
  const absl::Status status = run->FollowLaunch();
  const NcclRun& watched = runs_.Add(std::move(run));
  if (!status.ok()) owner_.OnTrouble(watched.call(), status);
}

absl::Status NcclLane::FinishFront() {
  while (NcclRun* const run = runs_.OldestOnStream()) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_done, run->IsDone());
    if (!is_done) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const bool is_finished, run->Proceed());
    if (!is_finished) return absl::OkStatus();
    runs_.TakeOldest()->call().Finish(absl::OkStatus());
  }
  return absl::OkStatus();
}

void NcclLane::Watch() {
  const MonoTime now = MonoNow();
  const absl::Status passed = absl::DeadlineExceededError("its deadline passed");
  if (const Call* late = runs_.FindLate(now)) return owner_.OnTrouble(*late, passed);
  if (const std::optional<Call> late = queue_.FindLate(now)) return owner_.OnTrouble(*late, passed);
  if (const Call* call = runs_.FindSuspicious(now, kSuspiciousTime)) owner_.OnSuspicion(*call);
}

// The ranks are revoked or aborted: no kernel touches a buffer any more, so that waiters may be
// told.
void NcclLane::EndAll(const absl::Status& failure) {
  queue_.Leave(runs_.EndPosting());
  while (!runs_.empty()) runs_.TakeOldest()->call().Finish(failure);
  while (std::optional<LaneQueue::Item> item = queue_.TakeFirst()) {
    item->call.Finish(failure);
    queue_.Leave(item->place);
  }
}

}  // namespace muster::comm
