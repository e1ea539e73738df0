// ParameterStore::BindToOwnBuffers, which takes host memory; the rest of a store needs no device.
#include "muster/parameter.h"

namespace muster {

void ParameterStore::BindToOwnBuffers() {
  pool_ = std::make_unique<TensorPool>();
  flat_values_ = pool_->Allocate(dtype_, {num_elements()});
  flat_gradients_ = pool_->Allocate(dtype_, {num_elements()});
  int64_t first = 0;
  for (const auto& parameter : parameters_) {
    parameter->BindValue(flat_values_.Slice(first, parameter->shape()));
    parameter->BindGradient(flat_gradients_.Slice(first, parameter->shape()));
    first += parameter->num_elements();
  }
}

}  // namespace muster
