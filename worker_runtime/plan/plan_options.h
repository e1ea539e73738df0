// What muster-train and `muster plan` are asked for besides their own options. Filled by
// worker_runtime/options/plan_flags.h.
#pragma once

#include <cstdint>
#include <string>

#include "muster/cuda_attention.h"
#include "muster/dtype.h"
#include "muster/gpt_config.h"
#include "muster/plan.h"

namespace muster::plan {

struct PlanOptions {
  Plan plan;
  GptConfig model;
  int64_t batch_size = 4;  // sequences per rank and micro-batch
  int64_t steps = 200;
  DType dtype = DType::kF32;
  std::string device = "cpu";  // or "cuda"
  CudaAttention cuda_attention = CudaAttention::kAuto;

  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

}  // namespace muster::plan
