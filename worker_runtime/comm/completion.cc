#include "worker_runtime/comm/completion.h"

#include "absl/strings/str_cat.h"
#include "muster/work.h"

namespace muster {
namespace comm {

void Completion::MarkStarted() {
  base::MutexLock lock(mu_);
  if (!done_ && started_at_.is_infinite()) started_at_ = MonoNow();
}

void Completion::Finish(absl::Status status) {
  base::MutexLock lock(mu_);
  if (done_ || (status.ok() && --parts_left_ > 0)) return;
  done_ = true;
  finished_at_ = MonoNow();
  status_ = std::move(status);
  changed_.NotifyAll();
}

void Completion::MarkPosted() {
  base::MutexLock lock(mu_);
  posted_ = true;
  changed_.NotifyAll();
}

void Completion::SetAwaited(bool awaited) {
  for (const OperationRing::Ticket ticket : tickets_) ring_->SetAwaited(ticket, awaited);
}

absl::Status Completion::WaitUntilPosted() {
  base::MutexLock lock(mu_);
  if (done_) return status_;
  const MonoTime began = MonoNow();
  followed_ = true;
  SetAwaited(true);
  while (!done_ && !posted_) changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
  if (ring_ != nullptr) ring_->AddWait(MonoNow() - began);
  return done_ ? status_ : absl::OkStatus();
}

absl::Status Completion::Wait(MonoTime deadline) {
  base::MutexLock lock(mu_);
  if (done_) return status_;
  const MonoTime began = MonoNow();
  SetAwaited(true);
  while (!done_ && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
  if (ring_ != nullptr && !followed_) ring_->AddWait(MonoNow() - began);
  if (done_) return status_;
  if (!followed_) SetAwaited(false);
  return absl::DeadlineExceededError(absl::StrCat(description_(), " has not finished yet"));
}

bool Completion::IsDone() {
  base::MutexLock lock(mu_);
  return done_;
}

MonoTime Completion::started_at() {
  base::MutexLock lock(mu_);
  return started_at_;
}

MonoTime Completion::finished_at() {
  base::MutexLock lock(mu_);
  return finished_at_;
}

}  // namespace comm

absl::Status Work::Wait(MonoTime deadline) const {
  return completion_ == nullptr ? absl::OkStatus() : completion_->Wait(deadline);
}

absl::Status Work::Await(Queue& queue) const {
  return completion_ == nullptr ? absl::OkStatus() : completion_->Await(queue);
}

bool Work::IsDone() const { return completion_ == nullptr || completion_->IsDone(); }

MonoTime Work::StartedAt() const {
  return completion_ == nullptr ? MonoTime() : completion_->started_at();
}

MonoTime Work::FinishedAt() const {
  return completion_ == nullptr ? MonoTime() : completion_->finished_at();
}

}  // namespace muster
