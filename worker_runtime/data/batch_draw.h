// What the options of a batch must fulfil. The draw itself is public (muster/data.h).
#pragma once

#include "absl/status/status.h"
#include "muster/data.h"

namespace muster::data {

// Errors: those of BatchReader::Create. Threads: pure.
absl::Status ValidateBatchOptions(const BatchOptions& options, int64_t num_tokens);

}  // namespace muster::data
