#include "worker_runtime/engine/boundary.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {

std::vector<Tensor> ValuesOf(absl::Span<const Activation> activations) {
  std::vector<Tensor> values;
  for (const Activation& activation : activations) values.push_back(activation.value);
  return values;
}

std::vector<Shape> ShapesOf(absl::Span<const Activation> activations) {
  std::vector<Shape> shapes;
  for (const Activation& activation : activations) shapes.push_back(activation.value.shape());
  return shapes;
}

std::string TextOfShapes(absl::Span<const Shape> shapes) {
  if (shapes.empty()) return "nothing";
  return absl::StrJoin(shapes, " and ", [](std::string* out, const Shape& shape) {
    absl::StrAppend(out, shape.ToString());
  });
}

int64_t BytesOfBoundary(DType dtype, absl::Span<const Shape> shapes) {
  int64_t elements = 0;
  for (const Shape& shape : shapes) elements += shape.num_elements();
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

std::vector<Tensor> Allocate(TensorPool& pool, DType dtype, absl::Span<const Shape> shapes) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back(pool.Allocate(dtype, shape));
  return tensors;
}

std::vector<Activation> Watch(Tape& tape, absl::Span<const Tensor> received) {
  std::vector<Activation> watched;
  for (const Tensor& tensor : received) watched.push_back(tape.Watch(tensor));
  return watched;
}

std::vector<Tensor> TakeGradients(Tape& tape, absl::Span<const Activation> received) {
  std::vector<Tensor> gradients;
  for (const Activation& activation : received) {
    Tensor gradient = tape.TakeGradient(activation);
    if (gradient.empty()) {
      const Tensor& value = activation.value;
      gradient = tape.pool().Allocate(value.dtype(), value.shape());
      // Adding anything to -0 leaves that as it is, 0 and -0 too.
      tape.operations(value.dtype()).fill(tape.queue(), -0.0, gradient);
    }
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

bool NeedGradients(absl::Span<const Activation> activations) {
  return std::any_of(activations.begin(), activations.end(),
                     [](const Activation& activation) { return activation.needs_gradient(); });
}

std::vector<Tape::Seed> SeedsOf(absl::Span<const Activation> outputs,
                                std::vector<Tensor> gradients) {
  MUSTER_CHECK(outputs.size() == gradients.size());
  std::vector<Tape::Seed> seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    seeds.push_back({.output = outputs[i], .gradient = std::move(gradients[i])});
  }
  return seeds;
}

absl::Status CheckPassedOn(absl::Span<const Activation> passed_on, absl::Span<const Shape> declared,
                           DType dtype, int stage) {
  const std::vector<Shape> shapes = ShapesOf(passed_on);
  if (shapes != declared) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " passes on ",
                                                   TextOfShapes(shapes), ", and the next receives ",
                                                   TextOfShapes(declared)));
  }
  for (const Activation& activation : passed_on) {
    if (activation.value.dtype() == dtype) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", stage, " passes on ", ToString(activation.value.dtype()),
                     ", and the parameters are ", ToString(dtype),
                     ": activations between stages have the store's type"));
  }
  std::set<int> slots;
  for (const Activation& activation : passed_on) {
    if (!activation.needs_gradient() || slots.insert(activation.slot).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "stage ", stage,
        " passes on one activation twice, whose gradient would be added up in another order than "
        "in one process: pass it on once"));
  }
  if (!slots.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "stage ", stage,
      " passes on nothing that an operation of its tape has made, so nothing in it would learn"));
}

}  // namespace muster::engine
