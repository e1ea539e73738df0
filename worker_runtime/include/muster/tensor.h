// Dense arrays, and the pool their memory comes from.
//
//   TensorPool pool;
//   Tensor x = pool.Allocate(DType::kF32, {4, 256, 384});
//   absl::Span<float> numbers = x.span<float>();
//
// A Tensor is a handle: copying it shares the elements, and the last handle gives the memory back
// to the pool. Nothing is ever copied, converted or computed behind the caller's back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/dtype.h"

namespace muster {

// Sizes of the dimensions, outermost first; at most four.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);  // NOLINT: written as {rows, columns}

  int rank() const { return rank_; }
  int64_t operator[](int dimension) const { return sizes_[dimension]; }
  absl::Span<const int64_t> sizes() const {
    return absl::MakeConstSpan(sizes_).first(static_cast<size_t>(rank_));
  }
  int64_t num_elements() const;
  // The same, but for one dimension.
  Shape With(int dimension, int64_t size) const {
    Shape other = *this;
    other.sizes_[dimension] = size;
    return other;
  }
  std::string ToString() const;  // "[4, 256, 384]"

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && a.sizes_ == b.sizes_;
  }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  std::array<int64_t, kMaxRank> sizes_ = {};
  int rank_ = 0;
};

namespace internal {
struct Block;  // memory of a pool, counted by its handles
void AddOwner(Block* block);
void DropOwner(Block* block);  // the last owner returns it to its pool
bool IsSoleOwner(const Block* block);
}  // namespace internal

// A dense row-major array: owning memory of a pool together with other handles, or borrowing memory
// that the caller keeps alive. Assigning and copying handles costs a counter. A const Tensor is a
// handle that stays; its elements may change.
//
// Threads: as shared_ptr: different handles may be used and dropped in different threads; elements
// are unguarded.
class Tensor {
 public:
  Tensor() = default;  // empty: no elements, no type
  ~Tensor();
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(const Tensor& other);
  Tensor& operator=(Tensor&& other) noexcept;

  // `data` must outlive every handle made from this one.
  static Tensor Borrow(void* data, DType dtype, Shape shape);
  // The same bytes as elements of another type, as many as fit: of the same memory, which this
  // shares.
  Tensor As(DType dtype, Shape shape) const;

  bool empty() const { return data_ == nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t num_elements() const { return shape_.num_elements(); }
  size_t num_bytes() const { return num_elements() * SizeOf(dtype_); }

  // False on a device without elements (meta).
  bool has_elements() const { return device_ == nullptr || device_->has_elements(); }
  // False on a device whose memory is its own, where reading an element ends the process.
  bool host_reads() const { return device_ == nullptr || device_->host_reads(); }

  // T must be the C++ type of dtype(), and the memory the host's.
  template <typename T>
  T* data() const;
  template <typename T>
  absl::Span<T> span() const {
    return {data<T>(), static_cast<size_t>(num_elements())};
  }
  void* raw_data() const { return data_; }

  // The same elements under another shape of as many elements.
  Tensor Reshaped(Shape shape) const;
  // `shape.num_elements()` elements from element `first` on, as a shape of their own.
  Tensor Slice(int64_t first, Shape shape) const;

  // Whether no other handle shares the memory, so that it may be overwritten. False for borrowed
  // memory.
  bool IsSoleOwner() const { return block_ != nullptr && internal::IsSoleOwner(block_); }

 private:
  friend class TensorPool;
  void CheckType(DType wanted) const;

  void* data_ = nullptr;
  internal::Block* block_ = nullptr;  // null: borrowed
  Shape shape_;
  DType dtype_ = DType::kF32;
  const Device* device_ = nullptr;  // null: the host's memory, borrowed
};

// Memory for tensors, kept for reuse: a block that comes back waits for a request of about its
// size. A training step asks for the same sizes in the same order every time, so after the first
// step no memory is taken from the system. Where sizes keep changing, the pool holds at most half
// as much again as was ever in use at once, and gives the rest back.
//
// Handles may outlive the pool; their memory is then freed with the last of them.
// Threads: thread-safe.
class TensorPool {
 public:
  struct Usage {
    size_t bytes_in_use = 0;
    size_t bytes_in_use_peak = 0;
    size_t bytes_reserved = 0;       // in use or waiting for reuse
    int64_t system_allocations = 0;  // requests that the system had to serve, ever
  };

  static constexpr size_t kAlignment = 64;

  // Memory of `device`, which outlives the pool; of a device without elements it has only sizes.
  explicit TensorPool(const Device& device = Device::Cpu());
  ~TensorPool();
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  // Uninitialised elements, aligned to kAlignment. Ends the process when the system has no memory
  // left.
  Tensor Allocate(DType dtype, Shape shape);

  // Frees the blocks that wait for reuse.
  void Trim();
  void ResetPeak();
  Usage usage() const;
  const Device& device() const;

 private:
  struct State;
  friend struct internal::Block;
  friend void internal::DropOwner(internal::Block* block);

  // Owned together with the blocks that are out; the last of them deletes it.
  State* state_;
};

namespace internal {
// Adds bf16 to DTypeOf, by the type of its bits.
template <typename T>
constexpr DType ElementType() {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return DType::kBf16;
  } else {
    return DTypeOf<T>();
  }
}
}  // namespace internal

template <typename T>
T* Tensor::data() const {
  CheckType(internal::ElementType<T>());
  return static_cast<T*>(data_);
}

}  // namespace muster
