// Elements on their way between the host and the device that holds a rank's state: for what is no
// kernel.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/tensor.h"

namespace muster::engine {

// The tensor itself where the host reads it, else a copy in memory of the host, which is waited
// for.
//
// Errors: the device's.
absl::StatusOr<Tensor> OnHost(Queue& queue, const Tensor& x);

// to = from, of as many elements, rounded or widened where the types differ; the host reads both,
// or only one of them.
//
// Errors: the device's.
absl::Status CopyAcross(Queue& queue, const Tensor& from, const Tensor& to);

// What was sent to the queue is done. `any`: memory of its device. Errors: the device's.
absl::Status WaitForQueue(Queue& queue, const Tensor& any);

// Writes what InitializeElements gives to `out`, which lies in memory of the queue's device.
void FillInitial(Queue& queue, const Parameter& parameter, uint64_t seed, int64_t first,
                 const Tensor& out);

}  // namespace muster::engine
