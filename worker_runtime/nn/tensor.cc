// Memory of tensors: a pool that keeps what comes back, within a bound.
#include "muster/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"

namespace muster {

Shape::Shape(std::initializer_list<int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  MUSTER_CHECK(sizes.size() <= kMaxRank);
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
}

int64_t Shape::num_elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= sizes_[i];
  return product;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(sizes_.begin(), sizes_.begin() + rank_, ", "), "]");
}

namespace internal {

// Facts of a block, kept beside the elements, which the host may not be able to reach.
struct Block {
  TensorPool::State* pool;  // lives at least until this block has come back
  size_t capacity;          // bytes of it
  void* elements;
  size_t bytes = 0;      // of the elements that it serves now, rounded up
  int64_t returned = 0;  // how many blocks had come back before it did
  std::atomic<int64_t> owners;
};

}  // namespace internal

using internal::Block;

namespace {

// A block may be larger than what it serves by one part in this many.
constexpr size_t kReuseWaste = 8;
// The pool may hold more than was ever in use at once by one part in this many.
constexpr size_t kReserveSlack = 2;

}  // namespace

struct TensorPool::State {
  explicit State(const Device& the_device) : device(the_device) {}

  const Device& device;
  base::Mutex mu;
  absl::btree_map<size_t, std::vector<Block*>> waiting ABSL_GUARDED_BY(mu);
  Usage usage ABSL_GUARDED_BY(mu);
  int64_t blocks_out ABSL_GUARDED_BY(mu) = 0;
  bool closed ABSL_GUARDED_BY(mu) = false;
  int64_t num_returned ABSL_GUARDED_BY(mu) = 0;

  Block* Take(size_t bytes);
  // Whether the pool is closed and this was its last block.
  bool GiveBack(Block* block);
  // The smallest block that waits and serves `bytes` without much waste, or null.
  Block* Reuse(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  Block* Reserve(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // False if none waits.
  bool FreeOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void FreeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Free(Block* block) {
    device.GiveMemory(block->elements);
    delete block;
  }
};

Block* TensorPool::State::Reuse(size_t bytes) {
  const auto found = std::find_if(waiting.lower_bound(bytes), waiting.end(),
                                  [](const auto& blocks) { return !blocks.second.empty(); });
  if (found == waiting.end() || found->first > bytes + bytes / kReuseWaste) return nullptr;
  Block* block = found->second.back();
  found->second.pop_back();
  return block;
}

// Batches of ever new sizes would fill the machine with blocks that fit nobody, so what waits
// longest makes room once the pool holds much more than was ever in use at once. A step whose sizes
// repeat stays below that and takes nothing from the system.
Block* TensorPool::State::Reserve(size_t bytes) {
  const size_t most = std::max(usage.bytes_in_use_peak, usage.bytes_in_use + bytes);
  const size_t bound = most + most / kReserveSlack;
  while (usage.bytes_reserved + bytes > bound && FreeOldest()) {
  }
  absl::erase_if(waiting, [](const auto& blocks) { return blocks.second.empty(); });
  // Without elements there is a place for each block all the same, which tells them apart.
  void* memory = device.TakeMemory(device.has_elements() ? bytes : kAlignment);
  usage.bytes_reserved += bytes;
  ++usage.system_allocations;
  return new Block{.pool = this, .capacity = bytes, .elements = memory, .owners = 0};
}

bool TensorPool::State::FreeOldest() {
  std::vector<Block*>* oldest = nullptr;
  for (auto& [capacity, blocks] : waiting) {
    if (blocks.empty()) continue;
    if (oldest == nullptr || blocks.front()->returned < oldest->front()->returned) {
      oldest = &blocks;
    }
  }
  if (oldest == nullptr) return false;
  Block* block = oldest->front();
  oldest->erase(oldest->begin());
  usage.bytes_reserved -= block->capacity;
  Free(block);
  return true;
}

Block* TensorPool::State::Take(size_t bytes) {
  base::MutexLock lock(mu);
  Block* block = Reuse(bytes);
  if (block == nullptr) block = Reserve(bytes);
  block->bytes = bytes;
  ++blocks_out;
  usage.bytes_in_use += bytes;
  usage.bytes_in_use_peak = std::max(usage.bytes_in_use_peak, usage.bytes_in_use);
  return block;
}

bool TensorPool::State::GiveBack(Block* block) {
  base::MutexLock lock(mu);
  usage.bytes_in_use -= block->bytes;
  block->returned = num_returned++;
  waiting[block->capacity].push_back(block);
  --blocks_out;
  if (closed) FreeWaiting();
  return closed && blocks_out == 0;
}

void TensorPool::State::FreeWaiting() {
  for (auto& [capacity, blocks] : waiting) {
    for (Block* block : blocks) {
      usage.bytes_reserved -= capacity;
      Free(block);
    }
    blocks.clear();
  }
}

namespace internal {

void AddOwner(Block* block) { block->owners.fetch_add(1, std::memory_order_relaxed); }

void DropOwner(Block* block) {
  if (block->owners.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  TensorPool::State* pool = block->pool;
  if (pool->GiveBack(block)) delete pool;
}

bool IsSoleOwner(const Block* block) { return block->owners.load(std::memory_order_acquire) == 1; }

}  // namespace internal

TensorPool::TensorPool(const Device& device) : state_(new State(device)) {}

const Device& TensorPool::device() const { return state_->device; }

TensorPool::~TensorPool() {
  bool last = false;
  {
    base::MutexLock lock(state_->mu);
    state_->closed = true;
    state_->FreeWaiting();
    last = state_->blocks_out == 0;
  }
  if (last) delete state_;
}

Tensor TensorPool::Allocate(DType dtype, Shape shape) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  tensor.device_ = &state_->device;
  const size_t bytes = std::max<size_t>(tensor.num_bytes(), 1);
  tensor.block_ = state_->Take((bytes + kAlignment - 1) / kAlignment * kAlignment);
  tensor.data_ = tensor.block_->elements;
  internal::AddOwner(tensor.block_);
  return tensor;
}

void TensorPool::Trim() {
  base::MutexLock lock(state_->mu);
  state_->FreeWaiting();
}

void TensorPool::ResetPeak() {
  base::MutexLock lock(state_->mu);
  state_->usage.bytes_in_use_peak = state_->usage.bytes_in_use;
}

TensorPool::Usage TensorPool::usage() const {
  base::MutexLock lock(state_->mu);
  return state_->usage;
}

Tensor::~Tensor() {
  if (block_ != nullptr) internal::DropOwner(block_);
}

Tensor::Tensor(const Tensor& other)
    : data_(other.data_),
      block_(other.block_),
      shape_(other.shape_),
      dtype_(other.dtype_),
      device_(other.device_) {
  if (block_ != nullptr) internal::AddOwner(block_);
}

Tensor::Tensor(Tensor&& other) noexcept { *this = std::move(other); }

Tensor& Tensor::operator=(const Tensor& other) {
  Tensor copy(other);
  return *this = std::move(copy);
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  if (block_ != nullptr) internal::DropOwner(block_);
  data_ = std::exchange(other.data_, nullptr);
  block_ = std::exchange(other.block_, nullptr);
  shape_ = std::exchange(other.shape_, Shape());
  dtype_ = other.dtype_;
  device_ = other.device_;
  return *this;
}

Tensor Tensor::Borrow(void* data, DType dtype, Shape shape) {
  Tensor tensor;
  tensor.data_ = data;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  return tensor;
}

Tensor Tensor::As(DType dtype, Shape shape) const {
  Tensor other = *this;
  other.dtype_ = dtype;
  other.shape_ = shape;
  MUSTER_CHECK(other.num_bytes() <= num_bytes());
  return other;
}

Tensor Tensor::Reshaped(Shape shape) const {
  MUSTER_CHECK(shape.num_elements() == num_elements());
  return Slice(0, shape);
}

Tensor Tensor::Slice(int64_t first, Shape shape) const {
  MUSTER_CHECK(first >= 0 && first + shape.num_elements() <= num_elements());
  Tensor part = *this;
  part.data_ = static_cast<char*>(data_) + first * SizeOf(dtype_);
  part.shape_ = shape;
  return part;
}

void Tensor::CheckType(DType wanted) const {
  MUSTER_CHECK(wanted == dtype_ && !empty());
  MUSTER_CHECK(host_reads());  // on meta there are sizes only; other devices' memory is their own
}

}  // namespace muster
