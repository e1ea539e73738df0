// Where tensors live, and what computes on them.
//
//   TensorPool pool(Device::Meta());   // sizes only: what a model would take, without taking it
//   Tape tape(pool);
//   model.ComputeLoss(tape, batch, targets);
//   pool.usage().bytes_in_use_peak
//
// A kernel is found by operation, device and dtype (nn/operations.h), and is put on a queue: on the
// cpu it runs at once, on meta it is only counted, on others it runs later, in the order of its
// queue. Reading a value where the host cannot ends the process and says so.
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

// What was put on a queue until some moment, for other queues to wait for.
//
// Threads: thread-compatible.
class Event {
 public:
  virtual ~Event() = default;
  // From now on it stands for what is on `queue` now.
  virtual void Record(Queue& queue) = 0;
  // What is put on `queue` from now on runs after the work that the event marks at this moment.
  virtual void HoldUp(Queue& queue) const = 0;
  // For what works on the device beside its queues, as NCCL does: on a GPU a cudaEvent_t. Null:
  // there is nothing to wait for, what was called has happened.
  virtual void* native() const { return nullptr; }
};

// What was put on a queue and kept instead of run.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  // All of it once more, with the arguments and on the memory that it was captured with.
  virtual void PutOn(Queue& queue) const = 0;
};

struct DeviceMemory {
  int64_t free_bytes = 0;  // now: others may use it too
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
  // Whether the host may read and write them in place, as kernels have run once they were called.
  virtual bool host_reads() const { return false; }
  virtual bool ComputesIn(DType dtype) const {
    return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16 ||
           dtype == DType::kF16;
  }
  // Ends the process for a type that the device does not compute in.
  virtual const Operations& operations(DType dtype) const = 0;

  // Nothing: it is the host's, or not known.
  virtual std::optional<DeviceMemory> memory() const { return std::nullopt; }
  // Memory for elements, aligned to TensorPool::kAlignment; null: there is none left.
  virtual void* TakeMemory(size_t bytes) const;
  virtual void GiveMemory(void* memory) const;

  // From one place of the device to another, once what is on the queue has run.
  virtual void CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const;
  // To the device, from memory of the host that may be used again when this returns.
  virtual void Upload(Queue& queue, const void* from, void* to, size_t bytes) const;
  // To the host. Waits until what is on the queue has run.
  //
  // Errors: kInternal: the device has failed, in that or before.
  virtual absl::Status Download(Queue& queue, const void* from, void* to, size_t bytes) const;
  virtual std::unique_ptr<Event> MakeEvent() const;

  virtual bool captures() const { return false; }
  // What this thread puts on `queue` until EndCapture is kept and does not run, with what other
  // queues get behind events that were recorded meanwhile and that are followed again. Nothing is
  // uploaded, waited for or taken from the device meanwhile.
  //
  // Errors: kUnimplemented: captures() is false; the device's. What is put there runs then, as
  // ever.
  virtual absl::Status BeginCapture(Queue& queue) const;
  // Errors: what went wrong since BeginCapture. Nothing has run, and the device goes on as if
  // nothing had been.
  virtual absl::StatusOr<std::unique_ptr<CapturedWork>> EndCapture(Queue& queue) const;

  // Where the layers of this device may be planned: the meta device whose layers go its ways and
  // whose kernels take the memory that its own work in.
  virtual const Device& meta() const = 0;
  // What people should know of its kernels, for a log; empty: nothing.
  virtual std::string notes() const { return ""; }

  static const Device& Cpu();
  static const Device& Meta();
};

// Kernels in the order in which they were put there. All queues of a device that are of one lane
// are one; kernels of different lanes may run side by side.
//
// Threads: thread-compatible.
class Queue {
 public:
  enum class Lane { kCompute, kCommunication, kCopy };

  // Both outlive it. `memory`: what kernels work in that need some of their own, for as long as
  // they run.
  explicit Queue(const Device& device, TensorPool* memory = nullptr, Lane lane = Lane::kCompute)
      : device_(device), memory_(memory), lane_(lane) {}
  const Device& device() const { return device_; }
  Lane lane() const { return lane_; }
  TensorPool* memory() const { return memory_; }  // null: the kernels' own

  // For kernels: one more was put here.
  void Count() { ++num_kernels_; }
  int64_t num_kernels() const { return num_kernels_; }
  // On meta: the floating point operations of the products that were put here.
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
