// Asks PyTorch's worker servers, several at once: HTTP over Unix sockets.
//
// A worker is trusted with nothing: what it answers is bounded in bytes and in time.
//
// Source: RFC 9112; what the server of torch 2.15 sends, observed.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

inline constexpr size_t kTorchAnswerBytesMax = size_t{8} << 20;

struct TorchQuestion {
  std::string socket;   // empty: not asked
  std::string handler;  // "fr_trace_json"
};

struct TorchAnswer {
  pid_t pid = 0;  // of the process that serves
  std::string body;
};

// One answer per question, in their order; an error where none has come by `deadline`.
//
// Errors, of each: kUnavailable: nobody serves there; kDeadlineExceeded: no answer in time;
//         kInvalidArgument: no answer of HTTP, one of another status than 200, or too long.
// Threads: safe; blocks until `deadline` at most, so not on the loop.
std::vector<absl::StatusOr<TorchAnswer>> AskTorch(const std::vector<TorchQuestion>& questions,
                                                  MonoTime deadline);

// The body of an answer that a worker has left in a file; nothing if it has not, or if it is none.
//
// Threads: safe.
std::optional<std::string> ReadAnswerFile(const std::string& path);

// The body, once `bytes` have all of it; nothing before.
//
// Errors: kInvalidArgument as above.
// Threads: pure.
absl::StatusOr<std::optional<std::string>> ReadHttpAnswer(absl::string_view bytes);

}  // namespace muster::agent
