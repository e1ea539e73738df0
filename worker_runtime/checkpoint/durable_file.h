// Files that are there in full or not at all, also after `kill -9` or a loss of power.
//
// Errors of every function here: kNotFound: a directory of the path is missing; kPermissionDenied;
// kInvalidArgument: the path cannot be one of a file; kResourceExhausted: no space, quota or a
// file size limit; kUnavailable: anything else the operating system says (EIO, EMFILE, ...).
// Threads: safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::checkpoint {

// The status for `error` (an errno): "<what>: <text of the error>".
absl::Status FileError(int error, absl::string_view what);

// Called again and again while something large is written or read; null: nobody asks.
using Progress = std::function<void()>;

// Gives the bytes of a file, part after part; they stay until the next call. Its error ends the
// writing.
using NextPart = std::function<absl::StatusOr<absl::string_view>()>;

// Writes `bytes` of what `next` gives as `path`: under a hidden name beside it, synced, then
// renamed. `progress` is called after each part. On an error `path` is as it was and nothing else
// is left.
absl::Status WriteDurably(const std::string& path, int64_t bytes, const NextPart& next,
                          const Progress& progress = nullptr);
absl::Status WriteDurably(const std::string& path, absl::string_view text);

// Bytes of a file that is open, from `offset` on. `path`: of it, for people.
//
// Errors: kInvalidArgument: it ends before that.
absl::Status ReadAt(int fd, int64_t offset, char* out, int64_t bytes, const std::string& path);

// Does what mkdir -p does, and syncs what it made.
absl::Status CreateDirectories(const std::string& path);

// Makes renames and new names in `path` lasting.
absl::Status SyncDirectory(const std::string& path);

// "." for a path without a slash.
std::string ParentOf(absl::string_view path);

// 16 hex digits that no other process draws.
std::string RandomSuffix();

}  // namespace muster::checkpoint
