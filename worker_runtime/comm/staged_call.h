// A call whose buffers lie in the memory of a device, for a backend that works on the host's: inputs are
// copied to the host before the call, the output back when somebody waits for it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/device.h"
#include "worker_runtime/comm/completion.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

// The pointers of a call.
struct CallBuffers {
  std::vector<const void*> inputs;
  void* output = nullptr;
};

// Owns the copies. The output is put on the queue of whoever waits first.
//
// Threads: safe.
class StagedCompletion final : public Completion {
 public:
  // Waits until `queue`, which outlives this, has run. `buffers` become those of the copies.
  //
  // Errors: the device's.
  static absl::StatusOr<std::shared_ptr<StagedCompletion>> Make(
      std::function<std::string()> description, const Operation& operation, int rank, int size,
      Queue& queue, CallBuffers& buffers);

  absl::Status Wait(MonoTime deadline) override;
  absl::Status Await(Queue& queue) override;

 private:
  StagedCompletion(std::function<std::string()> description, Queue& queue)
      : Completion(std::move(description)), queue_(queue) {}
  void PutOutput(Queue& queue);

  // Constant once it is made.
  Queue& queue_;
  std::vector<std::vector<std::byte>> copies_;
  const std::vector<std::byte>* output_ = nullptr;  // one of them; null: there is none
  void* on_device_ = nullptr;

  base::Mutex put_mu_;
  bool is_put_ ABSL_GUARDED_BY(put_mu_) = false;
};

}  // namespace muster::comm
