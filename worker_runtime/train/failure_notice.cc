#include "worker_runtime/train/failure_notice.h"

#include <cstdio>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "muster/agreement.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "proto/base/words.h"

namespace muster::train {
namespace {

constexpr char kKey[] = "muster_train/failure";
constexpr absl::Duration kStoreTime = absl::Seconds(2);
// A silent rank ends after rank 0, so that the launcher takes the rank with the sentence for the
// one that failed first.
constexpr absl::Duration kHeadStart = absl::Milliseconds(300);

void Print(const absl::Status& failure) {
  std::fflush(stdout);
  const std::string line = "muster-train: " + ShowInvisible(failure.message()) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

bool MayComeFromPeers(const absl::Status& failure) {
  if (IsOwnFailure(failure)) return false;
  return absl::IsAborted(failure) || absl::IsUnavailable(failure) ||
         absl::IsDeadlineExceeded(failure);
}

bool MustSay(const absl::Status& failure, const std::optional<std::string>& said_by_rank_0) {
  if (!said_by_rank_0.has_value()) return true;
  if (*said_by_rank_0 == failure.message()) return false;
  return !MayComeFromPeers(failure);
}

void SayFailure(Runtime* runtime, const absl::Status& failure) {
  const MonoTime deadline = MonoNow() + kStoreTime;
  if (runtime == nullptr || runtime->rank() == 0) {
    Print(failure);
    // Best effort: where the store is gone each rank speaks for itself.
    if (runtime != nullptr && runtime->size() > 1) {
      runtime->store().Set(kKey, std::string(failure.message()), deadline).IgnoreError();
    }
    return;
  }
  std::optional<std::string> said;
  if (absl::StatusOr<std::string> found = runtime->store().Wait(kKey, deadline); found.ok()) {
    said = *std::move(found);
  }
  if (MustSay(failure, said)) {
    Print(failure);
  } else {
    absl::SleepFor(kHeadStart);
  }
}

int ExitCodeOfSetup(const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return 2;
    default:
      return 1;
  }
}

}  // namespace muster::train
