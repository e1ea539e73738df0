// A file that grows with what workers print. It is appended to, never truncated.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// The status for a failed call on a path of the log directory: `cannot <what> <path>: <errno in
// words>`, and a hint. kResourceExhausted if something is used up (space, descriptors), else
// kInvalidArgument.
//
// Threads: pure.
absl::Status LogPathError(absl::string_view what, const std::string& path, int error);

// Makes `path` a directory, or accepts the one that is there.
//
// Errors: as LogPathError.
absl::Status MakeLogDirectory(const std::string& path);

// Threads: compatible.
class OutputFile {
 public:
  // Errors: as LogPathError.
  static absl::StatusOr<OutputFile> Open(const std::string& path);

  // A failed write is warned of once, and its bytes are counted as lost; later writes are still
  // tried.
  void Append(absl::string_view bytes);
  // Says how much was lost, if anything was, and closes.
  void Close();

  const std::string& path() const { return path_; }
  // Of the file when it was opened: what an earlier attempt has written.
  off_t start_offset() const { return start_offset_; }
  int64_t lost_bytes() const { return lost_bytes_; }
  // The descriptor itself, for a worker that writes without us.
  UniqueFd TakeDescriptor() { return std::move(fd_); }

 private:
  OutputFile(std::string path, UniqueFd fd, off_t start_offset)
      : path_(std::move(path)), fd_(std::move(fd)), start_offset_(start_offset) {}

  std::string path_;
  UniqueFd fd_;
  off_t start_offset_ = 0;
  int64_t lost_bytes_ = 0;
};

// The last `bytes_max` bytes of the file behind `start_offset`, whole lines if there are several;
// empty if it cannot be read.
std::string ReadFileTail(const std::string& path, off_t start_offset, size_t bytes_max);

}  // namespace muster::agent
