#include "worker_runtime/nn/narrow_operations.h"

namespace muster {
namespace {

TensorPool& OwnPool(const Device& host) {
  thread_local TensorPool pool(host);
  return pool;
}

}  // namespace

WideCopies::~WideCopies() {
  if (!queue_.device().has_elements()) return;
  for (const auto& [wide, narrow] : results_) wide_.cast(queue_, wide, narrow);
}

Tensor WideCopies::operator()(const Tensor& x) {
  const Role role = roles_.front();
  roles_.remove_prefix(1);
  const bool is_narrow = x.dtype() == DType::kBf16 || x.dtype() == DType::kF16;
  if (x.empty() || !is_narrow || role == Role::kAsIs) return x;
  const bool has_elements = queue_.device().has_elements();
  if (queue_.memory() == nullptr && !has_elements) return x;
  TensorPool& pool = queue_.memory() != nullptr ? *queue_.memory() : OwnPool(queue_.device());
  Tensor wide = pool.Allocate(DType::kF32, x.shape());
  if (has_elements && (role == Role::kIn || role == Role::kInOut)) wide_.cast(queue_, x, wide);
  if (role == Role::kOut || role == Role::kInOut) results_.emplace_back(wide, x);
  return wide;
}

}  // namespace muster
