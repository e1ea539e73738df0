// The engine's state as arrays of a checkpoint or a snapshot, by parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "muster/dtype.h"
#include "muster/parameter.h"
#include "muster/update.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/slice_file.h"
#include "worker_runtime/engine/state_view.h"

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

  size_t size() const { return model.size() + optimizer.size(); }
  const StateArray& operator[](size_t i) const {
    return i < model.size() ? model[i] : optimizer[i - model.size()];
  }
};

// The values of the model that a checkpoint holds, and what the optimizer keeps.
std::vector<StateArray> ModelArrays(const ParameterStore& store);
// Those that they leave out (Parameter::KeepElsewhere).
std::vector<StateArray> BaseArrays(const ParameterStore& store);
std::vector<StateArray> OptimizerArrays(const ParameterStore& store, const UpdateRule& rule);

CheckpointArrays AllArrays(const ParameterStore& store, const UpdateRule& rule);

// An array of a parameter, whole, in no pieces: parts of tensor ranks lie one after the other.
checkpoint::SlicedArray WholeArrayOf(const Parameter& parameter, DType dtype);

// The arrays as files take them, of type `dtype`.
std::vector<checkpoint::ArrayToWrite> ToWrite(const CheckpointArrays& arrays, DType dtype);

// What a checkpoint holds, or a snapshot.
using ArrayTable = checkpoint::SlicedArrays;
struct StateTable {
  const ArrayTable& model;
  const ArrayTable& optimizer;
  std::string name;      // for people
  bool is_file = false;  // of which arrays of 16 bits are widened
};

// Whether `from` holds the parameters of `store`, no more and no fewer, and of each that is not
// frozen the moments that `rule` keeps, in their shapes and of type `dtype`, or in a
// file of 16 bits where that is f32.
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

// Whether `model` holds these arrays in their shapes, of any float type. `name`: of it, for people.
//
// Errors: kInvalidArgument: names the first that differs.
absl::Status CheckHolds(const std::vector<StateArray>& arrays, const ArrayTable& model,
                        const std::string& name);

}  // namespace muster::engine
