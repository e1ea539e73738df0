#include "rendezvous/client/retry_policy.h"

namespace muster::rendezvous {
namespace {

// One refusal may be a server that is just starting or ending.
constexpr int kMaxSecretRefusals = 3;
constexpr int kMaxStrangers = 5;

int TriesBeforeGivingUp(FailureKind kind) {
  switch (kind) {
    case FailureKind::kSecret:
      return kMaxSecretRefusals;
    case FailureKind::kNotMuster:
      return kMaxStrangers;
    default:
      return 1;
  }
}

}  // namespace

bool RetryPolicy::GivesUp(FailureKind kind) {
  if (kind == FailureKind::kRetry) return false;
  ++num_refusals_;
  return !was_accepted_ && num_refusals_ >= TriesBeforeGivingUp(kind);
}

void RetryPolicy::NoteAccepted() {
  was_accepted_ = true;
  num_refusals_ = 0;
}

absl::Duration RetryPolicy::NextPause() { return ComputeBackoff(backoff_, step_++, NextJitter()); }

double RetryPolicy::NextJitter() {
  // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  uint64_t z = (jitter_state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

}  // namespace muster::rendezvous
