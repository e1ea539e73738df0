#include "worker_runtime/plan/state_types.h"

namespace muster::plan {

StateTypes TypesOf(const Plan& plan, DType parameters) {
  const DType wide = SizeOf(parameters) < SizeOf(DType::kF32) ? DType::kF32 : parameters;
  const DType optimizer = plan.optimizer_dtype.value_or(wide);
  const DType gradients = plan.gradient_dtype.value_or(wide);
  return {.parameters = parameters,
          .master = optimizer,
          .gradients = gradients,
          .moments = optimizer,
          .reduced = plan.reduce_dtype.value_or(gradients)};
}

}  // namespace muster::plan
