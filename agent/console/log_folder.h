// The folder of a job's logs, which may lie where others may write: in /tmp, whose cleaner takes
// away what is old, and then anybody may make a folder of that name.
//
// Above the first directory that we made, what the user named may be shared, and may be a link.
// From there on no link is followed, and the owner must be the one that it had; a folder that was
// cleaned away is made again, for us alone.
#pragma once

#include <sys/types.h>

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

// Threads: constant after construction; calls may block for as long as the file system does.
class LogFolder {
 public:
  // `path` is there. `topmost` is the first directory on the way to it that is ours; empty: itself.
  explicit LogFolder(std::string path, std::string topmost = "");

  const std::string& path() const { return path_; }

  // A directory at or below the topmost that is ours; what is missing of it is made.
  //
  // Errors: as LogPathError; kInvalidArgument also if another user's directory, or a link, is in
  // its place.
  absl::StatusOr<UniqueFd> OpenDirectory(const std::string& path) const;
  // A file in such a directory, by open(2)'s `flags` without following a link. Blocks on a pipe
  // that nobody reads.
  absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags) const;
  // Why a file in such a directory cannot grow, in the system's words ("No space left on device");
  // empty: it can, or the file system does not tell. Leaves nothing behind.
  std::string WhyFull(const std::string& directory) const;
  // Gives a file in such a directory another name there. Makes no directory: what is missing has
  // nothing to rename.
  void Rename(const std::string& path, const std::string& name) const;

 private:
  absl::StatusOr<UniqueFd> OpenTopmost() const;
  enum class Missing { kMade, kRefused };  // directories
  absl::StatusOr<UniqueFd> OpenBelow(UniqueFd fd, const std::string& path, Missing missing) const;

  std::string path_;
  std::string topmost_;
  uid_t owner_;  // of the topmost when it was made; a file server may have changed it
};

}  // namespace muster::agent
