// The process's descriptors and threads as a resource: what our programs make sure of before they
// start gRPC, which ends the process or hangs where it gets none.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// Opens /dev/null in place of a closed 0, 1 or 2, so that no file or socket of ours gets one of
// these numbers: a worker's print would be written into it, and a worker would have no standard
// input. What a program does before all else.
void OpenStandardStreams();

// Raises this process's soft limit on open descriptors to the hard one, and returns it. Processes
// that were forked before keep theirs.
int RaiseDescriptorLimit();

// Whether a process of this user is at the other end of a connected Unix socket (SO_PEERCRED).
bool IsOfThisUser(int socket);

// `text` as `fd` may get it: to a pipe or a file it goes as it is, to a terminal through
// LinesForTerminal (proto/base/words.h).
std::string TextFor(int fd, absl::string_view text);

// What `run` returns. A program that runs out of descriptors, threads or memory in a place that
// cannot go on without ends with a sentence on standard error, and `exit_code`.
int RunUntilUsedUp(const char* program, int exit_code, const std::function<int()>& run);

// Ends the process from its main thread, as the last thing that `main` does. gRPC's threads may
// still run (PrepareGrpc), so nothing that they use is destroyed.
[[noreturn]] void LeaveWith(int exit_code);

// Whether this user may start as many threads as gRPC needs.
//
// Errors: kResourceExhausted, naming the limit.
absl::Status CheckCanStartThreads();

}  // namespace muster
