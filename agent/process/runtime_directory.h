// Makes the directories of a job: the private one for sockets and boards, and the one for logs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::agent {

// The longest path that a Unix socket can have (sun_path without its NUL).
inline constexpr size_t kSocketPathBytesMax = 107;

// Where a job's own files go that nobody gave a place: `tmpdir` ($TMPDIR; empty: not set), then
// /tmp, then /var/tmp.
std::vector<std::string> TemporaryPlaces(const std::string& tmpdir);

struct RuntimeDirectoryOptions {
  std::string xdg_runtime_dir;  // $XDG_RUNTIME_DIR; empty: not set
  std::vector<std::string> temporary_places = TemporaryPlaces("");
  std::string longest_name = "agent.sock";  // of the sockets that will be made in it
};

// Makes a fresh directory that only this user can enter: below <xdg_runtime_dir>/muster, else
// muster-XXXXXX in the first temporary place that will do. A place is passed over if it is not ours
// alone, cannot be written, is full, or makes a socket's path longer than kSocketPathBytesMax.
//
// Errors: kInvalidArgument with each place that was tried and what was wrong with it.
absl::StatusOr<std::string> MakeRuntimeDirectory(const RuntimeDirectoryOptions& options);

// The places where MakeRuntimeDirectory makes directories, as prefixes of their paths.
std::vector<std::string> RuntimeDirectoryPrefixes(const RuntimeDirectoryOptions& options);

// That `path` is a directory, no link, owned by this user and closed to others.
//
// Errors: kFailedPrecondition saying which of these it is not.
absl::Status CheckPrivateDirectory(const std::string& path);

struct RunDirectoryOptions {
  std::string log_dir;  // --log_dir; empty: a fresh directory muster_XXXXXX in a temporary place
  std::string run_id;
  std::vector<std::string> temporary_places = TemporaryPlaces("");
};

struct MadeDirectory {
  std::string path;
  std::string note;  // worth a line: the first temporary place would not do; empty: it did
};

// Makes <log_dir>/<run_id>_<random> and the parents it needs. Characters of the run id other than
// letters, digits, dot, underscore and minus become underscores; a long one is cut. A temporary
// place is passed over if it cannot be written or is full.
//
// Errors: kInvalidArgument: something on the way is no directory, or the path cannot exist or be
//         written (not kPermissionDenied, which a launch takes for a refused secret);
//         kResourceExhausted: full. Each names --log_dir, the path, and errno in words; where no
//         temporary place will do, each of them and TMPDIR.
// Source: PyTorch, torch/distributed/elastic/multiprocessing/api.py, DefaultLogsSpecs (the layout).
absl::StatusOr<MadeDirectory> MakeRunDirectory(const RunDirectoryOptions& options);

// Removes a file, a socket, a link (not what it points to), or a directory with all that is in it.
// Only what this user owns; never over the border of a file system. What cannot be removed stays.
void RemoveOwnedPath(const std::string& path);

}  // namespace muster::agent
