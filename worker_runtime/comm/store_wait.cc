#include "worker_runtime/comm/store_wait.h"

#include "proto/base/status_macros.h"

namespace muster::comm {

absl::StatusOr<std::string> WaitUnless(Store& store, const std::string& key, MonoTime deadline,
                                       absl::FunctionRef<absl::Status()> failure) {
  while (true) {
    absl::StatusOr<std::string> value =
        store.Wait(key, Min(deadline, MonoNow() + kStoreLookAround));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    MUSTER_RETURN_IF_ERROR(failure());
    if (deadline <= MonoNow()) return value;
  }
}

}  // namespace muster::comm
