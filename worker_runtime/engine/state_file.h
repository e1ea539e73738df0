// The engine's state as arrays of a checkpoint or a snapshot, by parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "muster/update.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/engine/state_exchange.h"

namespace muster::engine {

struct StateArray {
  StateKind kind = StateKind::kValue;
  Parameter* parameter = nullptr;  // of the store
  std::string name;                // in the file
};

// All arrays of a checkpoint: those of the model come first.
struct CheckpointArrays {
  std::vector<StateArray> model;
  std::vector<StateArray> optimizer;
  std::unique_ptr<TensorPool> pool = std::make_unique<TensorPool>();
  Tensor memory;  // of the largest

  size_t size() const { return model.size() + optimizer.size(); }
  const StateArray& operator[](size_t i) const {
    return i < model.size() ? model[i] : optimizer[i - model.size()];
  }
  Tensor MemoryOf(size_t i) const {
    return memory.Slice(0, {(*this)[i].parameter->num_elements()});
  }
};

// The arrays of model.safetensors, and of optimizer.safetensors.
std::vector<StateArray> ModelArrays(const ParameterStore& store);
// Those that they leave out (Parameter::KeepElsewhere).
std::vector<StateArray> BaseArrays(const ParameterStore& store);
std::vector<StateArray> OptimizerArrays(const ParameterStore& store, const UpdateRule& rule);

// [outermost first]
std::vector<int64_t> Sizes(const Shape& shape);

// The arrays as a file takes them. All share `memory`, one after the other: each is filled when it
// is its turn.
std::vector<checkpoint::NamedArray> NamedArrays(const std::vector<StateArray>& arrays, DType dtype,
                                                const Tensor& memory);

// What a checkpoint holds, or a snapshot.
using ArrayTable = std::map<std::string, checkpoint::ArrayInfo>;
struct StateTable {
  const ArrayTable& model;
  const ArrayTable& optimizer;
  std::string name;  // for people
};

// Whether `from` holds the parameters of `store`, no more and no fewer, and of each that is not
// frozen the moments that `rule` keeps, in their shapes and of type `dtype`.
//
// Errors: kInvalidArgument: names the first that differs.
absl::Status CheckSameModel(const ParameterStore& store, DType dtype, const UpdateRule& rule,
                            const StateTable& from);

// Whether `model` holds what the parameters of `store` that are kept elsewhere need, and nothing
// that the store has not. `name`: of it, for people.
//
// Errors: kInvalidArgument: names the first that differs.
absl::Status CheckIsBase(const ParameterStore& store, DType dtype, const ArrayTable& model,
                         const std::string& name);

}  // namespace muster::engine
