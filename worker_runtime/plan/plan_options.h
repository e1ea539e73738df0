// What muster-train and `muster plan` are asked for besides their own options. Filled by
// worker_runtime/options/plan_flags.h.
#pragma once

#include <cstdint>
#include <string>

#include "muster/cuda_attention.h"
#include "muster/decoder_config.h"
#include "muster/dtype.h"
#include "muster/plan.h"

namespace muster::plan {

// Sequences of a step and how it is cut, as asked for; 0: not said. FinishPlanOptions and
// SpreadBatch make PlanOptions::batch_size and Plan::accumulation of it.
struct BatchSizes {
  int64_t train = 0;         // of all ranks and micro-batches
  int64_t micro = 0;         // of a rank's micro-batch
  int64_t accumulation = 0;  // micro-batches of a rank

  friend bool operator==(const BatchSizes&, const BatchSizes&) = default;
};

// The places where states are to rest between their uses.
struct OffloadOptions {
  Residency optimizer = Residency::kDevice;
  Residency parameters = Residency::kDevice;

  friend bool operator==(const OffloadOptions&, const OffloadOptions&) = default;
};

struct PlanOptions {
  Plan plan;
  DecoderConfig model;
  DecoderAdapters adapters;  // beside matrices of `model`
  BatchSizes asked;
  OffloadOptions offload;
  bool measures_unit_costs = false;  // Plan::unit_costs is filled in once the model can run
  int64_t replicas = 0;              // of each shard, as --mesh says; 0: what is left
  int64_t batch_size = 4;            // sequences per rank and micro-batch
  int64_t steps = 200;
  DType dtype = DType::kF32;
  std::string device = "cpu";  // or "cuda"
  CudaAttention cuda_attention = CudaAttention::kAuto;

  DType adapters_dtype() const { return adapters.dtype.value_or(dtype); }
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

}  // namespace muster::plan
