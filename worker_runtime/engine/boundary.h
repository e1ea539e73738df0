// What one stage of a pipeline hands to the next: one activation or several.
//
// Threads: as Tape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/dtype.h"
#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster::engine {

std::vector<Tensor> ValuesOf(absl::Span<const Activation> activations);
std::vector<Shape> ShapesOf(absl::Span<const Activation> activations);
// "[2, 8] and [2]": for people.
std::string TextOfShapes(absl::Span<const Shape> shapes);
int64_t BytesOfBoundary(DType dtype, absl::Span<const Shape> shapes);

// Tensors of these shapes, uninitialised.
std::vector<Tensor> Allocate(TensorPool& pool, DType dtype, absl::Span<const Shape> shapes);

// Makes what came from another stage activations of `tape`.
std::vector<Activation> Watch(Tape& tape, absl::Span<const Tensor> received);
// The gradients of what was received, after a backward pass. Where a stage has not used it they are
// zeros: the stage before waits for all of them.
std::vector<Tensor> TakeGradients(Tape& tape, absl::Span<const Activation> received);

bool NeedGradients(absl::Span<const Activation> activations);
// Pairs each of `outputs` with its gradient from the stage behind, of which there are as many.
std::vector<Tape::Seed> SeedsOf(absl::Span<const Activation> outputs,
                                std::vector<Tensor> gradients);

// Checks what a stage before the last passes on. `declared`: what the stage behind receives.
//
// Errors: kInvalidArgument: `passed_on` are others, or one of them comes twice, or none needs a
//         gradient.
absl::Status CheckPassedOn(absl::Span<const Activation> passed_on, absl::Span<const Shape> declared,
                           DType dtype, int stage);

}  // namespace muster::engine
