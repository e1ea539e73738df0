// Puts a complete directory in its place in one step that the world sees whole or not at all.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster::checkpoint {

enum class Replacing {
  // Both names change places in one system call (renameat2). Where the file system cannot: kAside.
  kExchange,
  // The old directory is renamed first, to "<parent>/.<name>.replaced.<random>". In between the
  // place is empty, and who looks for a checkpoint then finds that one (see CheckpointSearch).
  kAside,
};

inline constexpr absl::string_view kReplaced = ".replaced.";

// Renames directory `written` to `place` and syncs their parent, which is the same. A directory
// that is there is replaced and then removed.
//
// Errors: FileError's; kInvalidArgument: `place` is a file. On an error `written` is still
// there, unless it is the last sync that failed: then it has its place, and what was there before
// lies beside it.
// Threads: safe; of two who publish to one place the last wins.
absl::Status PublishDirectory(const std::string& written, const std::string& place,
                              Replacing replacing = Replacing::kExchange);

}  // namespace muster::checkpoint
