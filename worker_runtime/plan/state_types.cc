#include "worker_runtime/plan/state_types.h"

namespace muster::plan {

StateTypes TypesOf(const Plan& plan, DType parameters) {
  const DType wide = SizeOf(parameters) < SizeOf(DType::kF32) ? DType::kF32 : parameters;
  const DType optimizer = plan.optimizer.dtype.value_or(wide);
  return {.parameters = parameters,
          .master = optimizer,
          .gradients = plan.gradients.dtype.value_or(wide),
          .moments = optimizer};
}

}  // namespace muster::plan
