#include "worker_runtime/train/agreed_backend.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::train {
namespace {

constexpr char kGloo[] = "gloo";
constexpr char kAgreed[] = "muster-train/backend/agreed";
std::string KeyOf(int rank) { return absl::StrCat("muster-train/backend/", rank); }

absl::StatusOr<std::string> WaitFor(Store& store, const std::string& key, int rank,
                                    MonoTime deadline) {
  absl::StatusOr<std::string> value = store.Wait(key, deadline);
  if (!absl::IsDeadlineExceeded(value.status())) return value;
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank, " has not said whether it has a GPU for --backend=auto"));
}

// What one rank lacks, none can use.
absl::StatusOr<std::string> WhatAllHave(Store& store, const OwnBackend& own, MonoTime deadline) {
  if (!own.follows) return own.name;
  for (int rank = 1; rank < own.size; ++rank) {
    if (own.name == kGloo) break;
    MUSTER_ASSIGN_OR_RETURN(const std::string name, WaitFor(store, KeyOf(rank), rank, deadline));
    if (name != own.name) return std::string(kGloo);
  }
  return own.name;
}

}  // namespace

absl::StatusOr<std::string> AgreeOnBackend(Store& store, const OwnBackend& own, MonoTime deadline) {
  if (own.size == 1) return own.name;
  if (own.rank > 0) {
    MUSTER_RETURN_IF_ERROR(store.Set(KeyOf(own.rank), own.name, deadline));
    return own.follows ? WaitFor(store, kAgreed, 0, deadline) : own.name;
  }
  MUSTER_ASSIGN_OR_RETURN(std::string agreed, WhatAllHave(store, own, deadline));
  MUSTER_RETURN_IF_ERROR(store.Set(kAgreed, agreed, deadline));
  return agreed;
}

}  // namespace muster::train
