// The script rule: Program -> argv of a worker. Pure: what it must know of the file system comes in
// as functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/spec/job_spec.h"
#include "proto/spec/worker_env.h"

namespace muster::launcher {

enum class FileKind { kAbsent, kDirectory, kFile, kExecutable };

// What the rule needs to know of the file system and of ourselves; the shell fills it, tests make
// it up.
struct ProgramLookup {
  // Follows links; a relative path is one below the current directory.
  std::function<FileKind(const std::string& path)> kind_of;
  // The first bytes of a file, a few hundred; empty if it cannot be read.
  std::function<std::string(const std::string& path)> head_of;
  // Names in a directory ("." for the current one); may be empty, and so may its result.
  std::function<std::vector<std::string>(const std::string& directory)> list_directory;
  std::string current_directory;  // for messages
  // Path of the link or binary that we were called by, e.g. /venv/bin/torchrun.
  std::string invoked_as;
  std::string binary_directory;  // where our own binary lives, links resolved
  EnvironmentMap environment;    // PATH, PYTHON_EXEC, VIRTUAL_ENV, CONDA_PREFIX
};

struct WorkerProgram {
  std::vector<std::string> argv;
  std::string python;      // the interpreter; empty if the program is executed itself
  std::string python_why;  // "PYTHON_EXEC", "the first on PATH", …
  // What `python` is on PATH, where another one was taken that nobody has named.
  std::string python_on_path;
};

// The command of every worker. Run by Python, with -u: `.py .pyc .pyz`, a directory with a
// __main__.py, a file that is not executable, and an executable text that begins with #! and a
// Python, or with no #! at all. Another executable is executed. A bare name that is no file of the
// current directory is looked for beside our binary, then on PATH. The first element of argv always
// holds a slash, so that exec needs no PATH.
//
// Errors: kInvalidArgument: a script that is not there (with the nearest file name of its
// directory, if the shell lists it), a directory without __main__.py, no Python to be found.
absl::StatusOr<WorkerProgram> ResolveWorkerCommand(const Program& program,
                                                   const ProgramLookup& lookup);

// The argv of --node_check, which is executed itself. A bare name is looked for beside our binary,
// then on PATH; muster-doctor is `muster doctor` where there is no link of that name.
//
// Errors: kInvalidArgument: a program that is not there, a folder, a file that is not executable;
//         with what would do.
absl::StatusOr<std::vector<std::string>> ResolveNodeCheck(const std::string& program,
                                                          const ProgramLookup& lookup);

}  // namespace muster::launcher
