// Devices: the places where tensors live, and what computes on them.
//
//   TensorPool pool(Device::Meta());   // sizes only: what a model would take, without taking it
//   Tape tape(pool);
//   model.ComputeLoss(tape, batch, targets);
//   pool.usage().bytes_in_use_peak
//
// A kernel is chosen by operation, device and dtype (nn/operations.h) and put on a queue: on the
// cpu it runs at once, on meta it is only counted, on other devices it runs later, in the order of
// the queue. Reading a value that the host cannot read ends the process with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"

namespace muster {

struct Operations;
class Queue;
class TensorPool;

// Marks the work that a queue has been given so far, for other queues to wait for.
//
// Threads: thread-compatible.
class Event {
 public:
  virtual ~Event() = default;
  // Marks the work that is on `queue` now.
  virtual void Record(Queue& queue) = 0;
  // Makes work that `queue` is given from now on run after the work that the event marks now.
  virtual void HoldUp(Queue& queue) const = 0;
  // The device's own event (on a GPU a cudaEvent_t), for libraries that work beside its queues, as
  // NCCL does. Null: there is nothing to wait for.
  virtual void* native() const { return nullptr; }
};

// Work that was put on a queue and recorded instead of run.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  // Replays the captured work with the arguments and on the memory that it was captured with.
  virtual void PutOn(Queue& queue) const = 0;
};

// Which GPU a device is.
struct GpuIdentity {
  int number = 0;    // in this process, as muster/cuda_device.h counts them
  std::string uuid;  // "GPU-…", the same in all processes; of an instance of MIG that of its GPU
};

struct DeviceMemory {
  int64_t free_bytes = 0;  // at this moment; other processes may use the device too
  int64_t total_bytes = 0;
};

// The functions below that move bytes do nothing on a device without elements.
//
// Threads: safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual absl::string_view name() const = 0;
  // Whether tensors have elements.
  virtual bool has_elements() const = 0;
  // Whether the host may read and write elements in place, because kernels run when called.
  virtual bool host_reads() const { return false; }
  virtual bool ComputesIn(DType dtype) const {
    return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16 ||
           dtype == DType::kF16;
  }
  // Ends the process for a type that the device does not compute in.
  virtual const Operations& operations(DType dtype) const = 0;

  // Nothing: it is no GPU.
  virtual std::optional<GpuIdentity> gpu() const { return std::nullopt; }
  // The device's own memory; nothing if it is the host's, or unknown.
  virtual std::optional<DeviceMemory> memory() const { return std::nullopt; }
  // Memory for elements, aligned to TensorPool::kAlignment. Ends the process, which says how much
  // it wanted, if none is left.
  virtual void* TakeMemory(size_t bytes) const;
  virtual void GiveMemory(void* memory) const;

  // Copies within the device, once the work on the queue has run.
  virtual void CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const;
  // Copies to the device. The host's memory may be used again when this returns.
  virtual void Upload(Queue& queue, const void* from, void* to, size_t bytes) const;
  // Copies to the host. Waits until the work on the queue has run.
  //
  // Errors: kInternal: the device has failed, in this copy or before.
  virtual absl::Status Download(Queue& queue, const void* from, void* to, size_t bytes) const;
  virtual std::unique_ptr<Event> MakeEvent() const;

  virtual bool captures() const { return false; }
  // Until EndCapture, work that this thread puts on `queue` is recorded and does not run. So is
  // work of other queues behind events that were recorded meanwhile, if `queue` waits for it again.
  // Meanwhile nothing may be uploaded, waited for or allocated on the device.
  //
  // Errors: kUnimplemented: captures() is false; the device's. After an error work runs as usual.
  virtual absl::Status BeginCapture(Queue& queue) const;
  // Errors: what went wrong since BeginCapture. Nothing has run, and the device can be used as
  //         before.
  virtual absl::StatusOr<std::unique_ptr<CapturedWork>> EndCapture(Queue& queue) const;

  // The meta device on which models for this device are planned: its layers take the same paths,
  // and its kernels take as much memory.
  virtual const Device& meta() const = 0;
  // Notes on the kernels, for a log; may be empty.
  virtual std::string notes() const { return ""; }

  static const Device& Cpu();
  static const Device& Meta();
};

// Kernels in the order in which they were added. All queues of a device with the same lane are one
// queue; kernels of different lanes may run side by side.
//
// Threads: thread-compatible.
class Queue {
 public:
  enum class Lane { kCompute, kCommunication, kCopy };

  // `device` and `memory` outlive the queue. `memory` is scratch memory for kernels, used while
  // they run.
  explicit Queue(const Device& device, TensorPool* memory = nullptr, Lane lane = Lane::kCompute)
      : device_(device), memory_(memory), lane_(lane) {}
  const Device& device() const { return device_; }
  Lane lane() const { return lane_; }
  TensorPool* memory() const { return memory_; }  // null: the kernels' own

  // Called by kernels when they are added.
  void Count() { ++num_kernels_; }
  int64_t num_kernels() const { return num_kernels_; }
  // Counts the floating point operations of the products that were added, on meta.
  void CountFlops(double flops) { num_flops_ += flops; }
  double num_flops() const { return num_flops_; }

 private:
  const Device& device_;
  TensorPool* const memory_;
  const Lane lane_;
  int64_t num_kernels_ = 0;
  double num_flops_ = 0;
};

}  // namespace muster
