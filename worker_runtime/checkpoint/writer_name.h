// The name of the process that writes a checkpoint, as a part of a directory's name: by it another
// process of the machine sees that the writer was killed.
//
// Threads: safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::checkpoint {

// "<boot>-<namespace of processes>-<pid>-<when it started>" of this process; "unknown" where the
// system does not tell.
std::string WriterName();

// Whether the process of that name has ended. Of one on another machine, in another container, or
// of another form of name it is not known: false.
bool HasWriterEnded(absl::string_view name);

}  // namespace muster::checkpoint
