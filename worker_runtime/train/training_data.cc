#include "worker_runtime/train/training_data.h"

#include "proto/base/status_macros.h"

namespace muster::train {

absl::StatusOr<TrainingData> TrainingData::Open(const std::vector<std::string>& paths,
                                                int64_t vocabulary) {
  TrainingData data;
  MUSTER_ASSIGN_OR_RETURN(data.tokens, OpenTokens(paths, vocabulary));
  // A token that is none of the vocabulary ends the training only where it is read.
  data.sha256 = TokenDigest(*data.tokens).value_or("");
  return data;
}

}  // namespace muster::train
