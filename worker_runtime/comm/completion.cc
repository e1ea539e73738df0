#include "worker_runtime/comm/completion.h"

#include "absl/strings/str_cat.h"
#include "muster/work.h"

namespace muster {
namespace comm {

void Completion::Finish(absl::Status status) {
  base::MutexLock lock(mu_);
  if (done_) return;
  done_ = true;
  status_ = std::move(status);
  changed_.NotifyAll();
}

absl::Status Completion::Wait(MonoTime deadline) {
  base::MutexLock lock(mu_);
  while (!done_ && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
  if (done_) return status_;
  return absl::DeadlineExceededError(absl::StrCat(description_(), " has not finished yet"));
}

bool Completion::IsDone() {
  base::MutexLock lock(mu_);
  return done_;
}

}  // namespace comm

absl::Status Work::Wait(MonoTime deadline) const {
  return completion_ == nullptr ? absl::OkStatus() : completion_->Wait(deadline);
}

bool Work::IsDone() const { return completion_ == nullptr || completion_->IsDone(); }

}  // namespace muster
