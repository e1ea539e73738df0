// The host's twin of DecideUpdate in adamw.cu.
#include "worker_runtime/kernels/update_decision.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels {

void DecideUpdate(const UpdateSettings& settings, GradientTotals totals, UpdateDecision* decision) {
  const double weight = totals.tokens[0] * totals.loss_scale[0];
  decision->norm = std::sqrt(totals.squares[0]) / weight;
  const bool finite =
      std::isfinite(decision->norm) && (totals.loss == nullptr || std::isfinite(totals.loss[0]));
  decision->skipped = finite ? 0 : 1;
  if (!finite) return;
  const double clip =
      settings.max_norm == 0 ? 1 : std::min(1.0, settings.max_norm / (decision->norm + 1e-6));
  decision->gradient_scale = clip / weight;
  ++decision->updates;
  const double of_step = totals.learning_rate == nullptr ? 1 : totals.learning_rate[0];
  decision->learning_rate = of_step * settings.update.learning_rate;
}

}  // namespace muster::kernels
