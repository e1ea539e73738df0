// Calls that are captured with the work of a device (Communicator::BeginCapture), and launched with
// it.
#pragma once

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "muster/communicator.h"
#include "muster/device.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/operation.h"
#include "worker_runtime/comm/stream_call.h"

namespace muster::comm {

class CallCommunicator;

struct CapturedCall {
  CallCommunicator* communicator = nullptr;
  Operation operation;  // its sequence number is given at each launch
  absl::Duration timeout;
  std::shared_ptr<StreamCompletion> completion;  // of the capture alone
};

// Whether a communicator and those that were split from it are captured. They share it.
//
// Threads: safe.
class CaptureState {
 public:
  // Captures calls of this thread from now on. Errors: kFailedPrecondition: they or another's are
  // captured already.
  absl::Status Begin();
  // Asked for every call, before anything else: whether it is captured. While another thread
  // captures, this one waits.
  bool Captures();
  void Add(CapturedCall call);
  // The capture fails: a call that cannot be captured. Returns `why`.
  absl::Status Refuse(absl::Status why);

  // What was captured so far, in order.
  std::vector<CapturedCall> calls();
  absl::Status refused();
  void End();

 private:
  base::Mutex mu_;
  base::Condition ended_;
  bool captures_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id thread_ ABSL_GUARDED_BY(mu_);
  std::vector<CapturedCall> calls_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
};

// `calls` may be empty: the work is launched alone.
std::unique_ptr<CapturedCalls> MakeCapturedCalls(std::unique_ptr<CapturedWork> work,
                                                 std::vector<CapturedCall> calls);

}  // namespace muster::comm
