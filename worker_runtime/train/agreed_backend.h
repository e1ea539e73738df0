// What --backend=auto stands for in a job: nodes differ in their GPUs, and all ranks must meet over
// the same back end.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"

namespace muster::train {

struct OwnBackend {
  int rank = 0;
  int size = 1;
  std::string name;     // that of BackendFor
  bool follows = true;  // it is what all can do, and was not asked for by name
};

// nccl where every rank has a GPU of its own, else gloo; for a rank that was told which, that one.
// All ranks call it, once a round.
//
// Errors: the store's; kDeadlineExceeded names the rank that did not come.
// Cost:    two requests per rank to the store, and as many as there are ranks from the first.
// Threads: of one rank each.
absl::StatusOr<std::string> AgreeOnBackend(Store& store, const OwnBackend& own, MonoTime deadline);

}  // namespace muster::train
