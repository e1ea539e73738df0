// ParameterStore::BindToOwnBuffers, which takes host memory; the rest of a store needs no device.
#include "muster/parameter.h"

namespace muster {

void ParameterStore::BindToOwnBuffers() {
  pool_ = std::make_unique<TensorPool>();
  int64_t num_flat = 0;
  for (const auto& parameter : parameters_) {
    if (parameter->dtype() == dtype_) num_flat += parameter->num_elements();
  }
  flat_values_ = pool_->Allocate(dtype_, {num_flat});
  flat_gradients_ = pool_->Allocate(dtype_, {num_flat});
  int64_t first = 0;
  for (const auto& parameter : parameters_) {
    if (parameter->dtype() != dtype_) {
      parameter->BindValue(pool_->Allocate(parameter->dtype(), parameter->shape()));
      parameter->BindGradient(pool_->Allocate(parameter->dtype(), parameter->shape()));
      continue;
    }
    parameter->BindValue(flat_values_.Slice(first, parameter->shape()));
    parameter->BindGradient(flat_gradients_.Slice(first, parameter->shape()));
    first += parameter->num_elements();
  }
}

}  // namespace muster
