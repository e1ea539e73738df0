// The exit codes of our own programs (deploy/docs/run.md). A worker's own code, and
// 128 + n for a signal, come before these.
#pragma once

#include "absl/status/status.h"

namespace muster {

inline constexpr int kMaxExitCode = 255;

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;         // a wrong command line or configuration
inline constexpr int kExitRefused = 3;       // the secret was refused
inline constexpr int kExitNodesMissing = 4;  // at the join time-out
inline constexpr int kExitNodeUnfit = 5;     // the only node does not pass its --node_check
inline constexpr int kExitServerLost = 75;
inline constexpr int kExitNoProgress = 75;  // restarts in a row without a new checkpoint
// 76 is the guides' --left_exit_code: a drained or replaced node for which another one comes.

// A worker's, by which it says that starting it again cannot help (a wrong configuration, training
// that has diverged). Source: NVIDIA's resiliency extension, ft_launcher's
// --ft-no-restart-exit-code.
inline constexpr int kExitDoNotRestart = 93;

// `muster status` says by them how the job is; 0: healthy. 1 to 3 say that there is no answer.
inline constexpr int kExitJobWaits = 10;
inline constexpr int kExitJobHangs = 11;
inline constexpr int kExitJobFailed = 12;
inline constexpr int kExitJobEnded = 13;

inline int ExitCodeOfSignal(int signal) { return 128 + signal; }

// The exit code of a launch or a report that was refused.
inline int ExitCodeOf(const absl::Status& refusal) {
  switch (refusal.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
      return kExitUsage;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitRefused;
    default:
      return kExitFailure;
  }
}

}  // namespace muster
