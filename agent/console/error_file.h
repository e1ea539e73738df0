// The error file: what a worker says about its own failure (torch's @record writes it to
// TORCHELASTIC_ERROR_FILE), and what this launcher says to the one that started it.
//
// The file is written by a program we know nothing about: nothing in it is trusted.
// Source: PyTorch, torch/distributed/elastic/multiprocessing/errors (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/membership.h"

namespace muster::agent {

inline constexpr size_t kErrorFileBytesMax = 1 << 20;
inline constexpr size_t kErrorTextBytesMax = 2048;  // shown of a file that is not what it should be

struct ErrorRecord {
  std::string message;    // "ValueError: bad batch", or the first bytes of a file in another form
  std::string callstack;  // empty if there is none
  std::optional<int64_t> unix_millis;  // when it happened, by the worker's wall clock
  friend bool operator==(const ErrorRecord&, const ErrorRecord&) = default;
};

// Understands torch's form, its older form (a plain message with a timestamp beside it), and takes
// the first kErrorTextBytesMax bytes of anything else as the message.
//
// Threads: pure.
ErrorRecord ParseErrorRecord(absl::string_view bytes);

// None if there is no such file, it is empty, cannot be read or is not a regular file. Does not
// block on a pipe.
std::optional<ErrorRecord> ReadErrorFile(const std::string& path);

// Writes why a job failed to `path`, our own TORCHELASTIC_ERROR_FILE: the root cause's error file
// with message.errorCode added where it is on this node and in torch's form, else one made from
// what is known of it. Where no worker is at fault it is the verdict or the reason of `outcome`, at
// `now`. errorCode is the exit code, or the negative number of the root cause's signal. `path` is
// replaced as a whole or not at all.
//
// Errors: kInvalidArgument / kResourceExhausted naming the path and the reason.
absl::Status WriteErrorFile(const std::string& path, const JobOutcome& outcome, absl::Time now);

}  // namespace muster::agent
