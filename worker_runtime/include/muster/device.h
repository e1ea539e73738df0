// Where tensors live, and what computes on them.
//
//   TensorPool pool(Device::Meta());   // sizes only: what a model would take, without taking it
//   Tape tape(pool);
//   model.ComputeLoss(tape, batch, targets);
//   pool.usage().peak_bytes_in_use
//
// A kernel is found by operation, device and dtype (nn/operations.h), and is put on a queue: on the cpu
// it runs at once, on meta it is only counted. Reading a value on meta ends the process and says so.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "muster/dtype.h"

namespace muster {

struct Operations;
class TensorPool;

// Threads: safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual absl::string_view name() const = 0;
  // Whether tensors have elements, which the host may read.
  virtual bool has_elements() const = 0;
  // Ends the process for a type that the device does not compute in.
  virtual const Operations& operations(DType dtype) const = 0;

  static const Device& Cpu();
  static const Device& Meta();
};

// Kernels in the order in which they were put there.
//
// Threads: thread-compatible.
class Queue {
 public:
  // Both outlive it. `memory`: what kernels work in that need some of their own, for as long as they run.
  explicit Queue(const Device& device, TensorPool* memory = nullptr)
      : device_(device), memory_(memory) {}
  const Device& device() const { return device_; }
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
  int64_t num_kernels_ = 0;
  double num_flops_ = 0;
};

}  // namespace muster
