#include "worker_runtime/comm/solo_communicator.h"

#include <cstring>
#include <utility>

#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/failure_cell.h"

namespace muster::comm {
namespace {

class SoloCommunicator final : public CallCommunicator {
 public:
  explicit SoloCommunicator(Membership membership) : CallCommunicator(std::move(membership)) {
    EnterSwitch();
  }
  ~SoloCommunicator() override { LeaveSwitch(); }

  void Abort(absl::string_view reason) override {
    failure_.Set(AbortError(rank(), size(), group(), reason));
  }
  int64_t bytes_sent() const override { return 0; }

 private:
  // Whatever the operation, its result is the one rank's input: one block, or the one root that
  // covers all leaves.
  void Start(Call call) override {
    const absl::Status failure = failure_.Get();
    call.MarkStarted();
    const int64_t bytes = call.operation.bytes();
    if (failure.ok() && bytes > 0 && call.output != call.inputs[0]) Copy(call, bytes);
    if (call.on_stream != nullptr) call.on_stream->finished().Record(*call.queue);
    call.Finish(failure);
  }

  bool ReachesDevices() const override { return true; }
  static void Copy(const Call& call, int64_t bytes) {
    if (call.queue == nullptr) {
      std::memcpy(call.output, call.inputs[0], bytes);
    } else {
      call.queue->device().CopyBytes(*call.queue, call.inputs[0], call.output, bytes);
    }
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership child, const std::vector<int>&,
                                                          const std::string&) override {
    return MakeSoloCommunicator(std::move(child));
  }

  FailureCell failure_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSoloCommunicator(Membership membership) {
  return std::make_unique<SoloCommunicator>(std::move(membership));
}

}  // namespace muster::comm
