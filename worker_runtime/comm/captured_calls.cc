#include "worker_runtime/comm/captured_calls.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/call_communicator.h"

namespace muster {
namespace comm {
namespace {

constexpr absl::Duration kTurnInterval = absl::Microseconds(20);

class LaunchedTogether final : public CapturedCalls {
 public:
  LaunchedTogether(std::unique_ptr<CapturedWork> work, std::vector<CapturedCall> calls);

  Work Launch(Queue& queue) override;

 private:
  // Calls of one communicator that its backend runs one after the other.
  struct Part {
    CallCommunicator* communicator = nullptr;
    std::vector<Operation> operations;
  };

  absl::Status PutInOrder(Queue& queue, StreamCompletion& completion, MonoTime deadline);
  absl::Status PutWhileAlive(absl::Span<CallCommunicator* const> communicators,
                             absl::FunctionRef<absl::Status()> put);

  const std::unique_ptr<CapturedWork> work_;
  std::vector<Part> parts_;  // in the order of their first calls
  // Each once, in an order that all launches of the process share.
  std::vector<CallCommunicator*> communicators_;
  absl::Duration timeout_;  // the longest
};

LaunchedTogether::LaunchedTogether(std::unique_ptr<CapturedWork> work,
                                   std::vector<CapturedCall> calls)
    : work_(std::move(work)) {
  std::map<std::tuple<CallCommunicator*, OperationKind, int>, size_t> known;
  for (const CapturedCall& call : calls) {
    const auto [kind, peer] = CounterOf(call.operation);
    const auto [found, is_new] = known.try_emplace({call.communicator, kind, peer}, parts_.size());
    if (is_new) parts_.push_back({.communicator = call.communicator, .operations = {}});
    parts_[found->second].operations.push_back(call.operation);
    timeout_ = std::max(timeout_, call.timeout);
    communicators_.push_back(call.communicator);
  }
  std::sort(communicators_.begin(), communicators_.end());
  communicators_.erase(std::unique(communicators_.begin(), communicators_.end()),
                       communicators_.end());
}

// Each part is one entry in its backend's lane; together they are one Work, which ends with the
// last of them or with the first that fails.
Work LaunchedTogether::Launch(Queue& queue) {
  if (parts_.empty()) {
    work_->PutOn(queue);
    return {};
  }
  const MonoTime now = MonoNow();
  const std::string description = absl::StrCat(
      "a captured launch that begins with ",
      Describe(parts_.front().operations.front(), parts_.front().communicator->group()),
      " on rank ", parts_.front().communicator->rank());
  const auto completion = std::make_shared<StreamCompletion>(
      [description] { return description; }, queue, static_cast<int>(parts_.size()));
  std::vector<Call> calls;
  for (Part& part : parts_) {
    Call call = {.on_stream = completion,
                 .deadline = now + timeout_,
                 .timeout = timeout_,
                 .completion = completion};
    part.communicator->CallAgain(absl::MakeSpan(part.operations), now, call);
    calls.push_back(std::move(call));
  }
  const absl::Status put = PutInOrder(queue, *completion, now + timeout_);
  // The calls have their numbers and will never be made.
  if (!put.ok()) {
    for (CallCommunicator* communicator : communicators_) communicator->Abort(put.message());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (put.ok()) {
      calls[i].MarkStarted();
      parts_[i].communicator->WatchLaunch(std::move(calls[i]), parts_[i].operations);
    } else {
      calls[i].Finish(put);
    }
  }
  // Nothing else follows it, and a wait for its end is a wait for the rank's own kernels too.
  Work work(completion);
  work.Await(queue).IgnoreError();
  return work;
}

// All calls of a launch have one place in line, over all its communicators.
absl::Status LaunchedTogether::PutInOrder(Queue& queue, StreamCompletion& completion,
                                          MonoTime deadline) {
  const LaunchOrder::Turn turn(communicators_.front()->launch_order());
  bool is_put = false;
  const auto put = [&]() -> absl::Status {
    if (!turn.HasCome()) return absl::OkStatus();
    work_->PutOn(queue);
    completion.finished().Record(queue);
    is_put = true;
    return absl::OkStatus();
  };
  while (true) {
    if (absl::Status status = PutWhileAlive(communicators_, put); !status.ok()) return status;
    if (is_put) break;
    if (MonoNow() >= deadline) {
      return absl::DeadlineExceededError("calls before a captured launch were not started in time");
    }
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kTurnInterval));
  }
  completion.MarkPosted();
  return absl::OkStatus();
}

absl::Status LaunchedTogether::PutWhileAlive(absl::Span<CallCommunicator* const> communicators,
                                             absl::FunctionRef<absl::Status()> put) {
  if (communicators.empty()) return put();
  return communicators.front()->WhileAlive(
      [&] { return PutWhileAlive(communicators.subspan(1), put); });
}

}  // namespace

absl::Status CaptureState::Begin() {
  base::MutexLock lock(mu_);
  if (captures_) {
    return absl::FailedPreconditionError("a capture is begun before the one before it has ended");
  }
  captures_ = true;
  thread_ = std::this_thread::get_id();
  return absl::OkStatus();
}

bool CaptureState::Captures() {
  base::MutexLock lock(mu_);
  while (captures_ && thread_ != std::this_thread::get_id()) {
    ended_.WaitUntil(mu_, MonoTime::InfiniteFuture());
  }
  return captures_;
}

void CaptureState::Add(CapturedCall call) {
  base::MutexLock lock(mu_);
  calls_.push_back(std::move(call));
}

absl::Status CaptureState::Refuse(absl::Status why) {
  base::MutexLock lock(mu_);
  refused_.Update(why);
  return why;
}

std::vector<CapturedCall> CaptureState::calls() {
  base::MutexLock lock(mu_);
  return calls_;
}

absl::Status CaptureState::refused() {
  base::MutexLock lock(mu_);
  return refused_;
}

void CaptureState::End() {
  base::MutexLock lock(mu_);
  captures_ = false;
  calls_.clear();
  refused_ = absl::OkStatus();
  ended_.NotifyAll();
}

std::unique_ptr<CapturedCalls> MakeCapturedCalls(std::unique_ptr<CapturedWork> work,
                                                 std::vector<CapturedCall> calls) {
  return std::make_unique<LaunchedTogether>(std::move(work), std::move(calls));
}

}  // namespace comm

absl::Status Communicator::BeginCapture(Queue&) {
  return absl::UnimplementedError(
      absl::StrCat("calls of group ", group(), " cannot be captured with the work of a device"));
}

absl::StatusOr<std::unique_ptr<CapturedCalls>> Communicator::EndCapture(Queue&) {
  return absl::FailedPreconditionError("a capture is ended that was not begun");
}

}  // namespace muster
