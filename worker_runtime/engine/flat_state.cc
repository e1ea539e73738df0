#include "worker_runtime/engine/flat_state.h"

#include <cstring>
#include <utility>

namespace muster::engine {

FlatState::FlatState(ParameterStore& store, plan::FlatLayout layout, int num_gradients)
    : store_(store),
      layout_(std::move(layout)),
      values_(Allocate()),
      first_moments_(Allocate()),
      second_moments_(Allocate()) {
  for (int i = 0; i < num_gradients; ++i) gradients_.push_back(Allocate());
  for (const auto& parameter : store_.parameters()) {
    parameter->BindValue(Of(*parameter, values_));
  }
  BindGradients(0);
}

void FlatState::BindGradients(int slot) {
  for (const auto& parameter : store_.parameters()) {
    parameter->BindGradient(Of(*parameter, gradients_[slot]));
  }
}

Tensor FlatState::Of(const Parameter& parameter, const Tensor& flat) const {
  return flat.Slice(layout_.offsets[parameter.index()], parameter.shape());
}

Tensor FlatState::Allocate() {
  Tensor flat = pool_.Allocate(store_.dtype(), {layout_.num_elements});
  std::memset(flat.raw_data(), 0, flat.num_bytes());
  return flat;
}

}  // namespace muster::engine
