#include "worker_runtime/comm/memory_store.h"

#include "absl/strings/str_cat.h"

namespace muster::comm {

absl::Status MemoryStore::Set(const std::string& key, const std::string& value, MonoTime) {
  base::MutexLock lock(mu_);
  values_[key] = value;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Wait(const std::string& key, MonoTime deadline) {
  base::MutexLock lock(mu_);
  while (true) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    if (deadline <= MonoNow()) {
      return absl::DeadlineExceededError(absl::StrCat("key ", key, " was not set in time"));
    }
    changed_.WaitUntil(mu_, deadline);
  }
}

}  // namespace muster::comm
