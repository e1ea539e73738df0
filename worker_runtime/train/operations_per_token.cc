#include "worker_runtime/train/operations_per_token.h"

namespace muster::train {

double OperationsPerToken(const DecoderConfig& model) {
  const auto attention = static_cast<double>(model.layers * model.query_width() * model.context);
  return 6 * static_cast<double>(model.num_parameters()) + 6 * attention;
}

}  // namespace muster::train
