// The tokens that muster-train trains on, and what tells them from others of the same length.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/data.h"

namespace muster::train {

struct TrainingData {
  std::unique_ptr<TokenSource> tokens;  // null: not opened yet
  std::string sha256;                   // TokenDigest; empty where what it reads is damaged

  // `vocabulary` and errors: OpenTokens'.
  static absl::StatusOr<TrainingData> Open(const std::vector<std::string>& paths,
                                           int64_t vocabulary);
};

}  // namespace muster::train
