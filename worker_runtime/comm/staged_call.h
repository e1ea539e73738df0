// A call whose buffers lie in the memory of a device, for a backend that works on the host's:
// inputs are copied to the host before the call, the output back when somebody waits for it. Both
// on the device's lane of communication, which follows the queue of the call by an event, and is
// followed by another.
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

// Owns the copies.
//
// Threads: safe.
class StagedCompletion final : public Completion {
 public:
  // Waits until what is on `queue` has run, if there is an input. `buffers` become those of the
  // copies. The device of `queue` outlives this.
  //
  // Errors: the device's.
  static absl::StatusOr<std::shared_ptr<StagedCompletion>> Make(
      std::function<std::string()> description, const Operation& operation, int rank, int size,
      Queue& queue, CallBuffers& buffers);

  absl::Status Wait(MonoTime deadline) override;
  absl::Status Await(Queue& queue) override;

 private:
  StagedCompletion(std::function<std::string()> description, const Device& device)
      : Completion(std::move(description)), lane_(device, nullptr, Queue::Lane::kCommunication) {}
  void PutOutput() ABSL_EXCLUSIVE_LOCKS_REQUIRED(put_mu_);

  // Constant once it is made.
  std::vector<std::vector<std::byte>> copies_;
  const std::vector<std::byte>* output_ = nullptr;  // one of them; null: there is none
  void* on_device_ = nullptr;

  base::Mutex put_mu_;
  Queue lane_ ABSL_GUARDED_BY(put_mu_);
  std::unique_ptr<Event> output_is_there_ ABSL_GUARDED_BY(put_mu_);  // null: not put there yet
};

}  // namespace muster::comm
