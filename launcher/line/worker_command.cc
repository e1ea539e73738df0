#include "launcher/line/worker_command.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/environment.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using Command = std::vector<std::string>;

WorkerProgram Executed(Command argv) { return {.argv = std::move(argv)}; }

bool HasSlash(const std::string& path) { return path.find('/') != std::string::npos; }

// exec looks for a name without a slash on PATH; this one is meant to be here.
std::string WithSlash(const std::string& path) { return HasSlash(path) ? path : "./" + path; }

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsExecutable(const ProgramLookup& lookup, const std::string& path) {
  return lookup.kind_of(path) == FileKind::kExecutable;
}

// The executable `name` on PATH; empty if there is none. An empty entry of PATH is the current
// directory.
std::string FindOnPath(const ProgramLookup& lookup, const std::string& name) {
  const std::string path = VariableOrEmpty(lookup.environment, "PATH");
  if (path.empty()) return "";
  for (absl::string_view directory : absl::StrSplit(path, ':')) {
    const std::string candidate = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    if (IsExecutable(lookup, candidate)) return candidate;
  }
  return "";
}

// "; did you mean train.py?" from the names beside `path`.
std::string NearestFile(const ProgramLookup& lookup, const std::string& path) {
  if (!lookup.list_directory) return "";
  const std::string nearest = NearestName(NameOf(path), lookup.list_directory(DirectoryOf(path)));
  if (nearest.empty()) return "";
  return absl::StrCat("; did you mean ", HasSlash(path) ? DirectoryOf(path) + "/" : "", nearest,
                      "?");
}

absl::Status NoSuchFile(const ProgramLookup& lookup, const std::string& path) {
  const std::string where = absl::StartsWith(path, "/") || lookup.current_directory.empty()
                                ? ""
                                : absl::StrCat(" in ", lookup.current_directory);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no file ", path, where, NearestFile(lookup, path)));
}

struct Python {
  std::string path;
  std::string why;           // see WorkerProgram
  std::string on_path = {};  // see WorkerProgram::python_on_path
};

absl::StatusOr<Python> PythonFromVariable(const ProgramLookup& lookup, const std::string& python) {
  const std::string found = HasSlash(python) ? python : FindOnPath(lookup, python);
  if (found.empty() || !IsExecutable(lookup, found)) {
    return absl::InvalidArgumentError(absl::StrCat("PYTHON_EXEC=", python, " is not an executable",
                                                   HasSlash(python) ? "" : " on PATH",
                                                   "; expected a Python interpreter"));
  }
  return Python{found, "PYTHON_EXEC"};
}

// One that was activated last, over a virtual environment that is active still.
bool IsCondaFirstOnPath(const EnvironmentMap& environment) {
  const std::string conda = VariableOrEmpty(environment, "CONDA_PREFIX");
  const std::string path = VariableOrEmpty(environment, "PATH");
  return !conda.empty() && absl::StripSuffix(path.substr(0, path.find(':')), "/") == conda + "/bin";
}

// What a shell runs as `python`, where it lies in another folder than `taken`.
std::string OtherOnPath(const ProgramLookup& lookup, const std::string& taken) {
  for (const char* name : {"python", "python3"}) {
    const std::string found = FindOnPath(lookup, name);
    if (!found.empty()) return DirectoryOf(found) == DirectoryOf(taken) ? "" : found;
  }
  return "";
}

// The "python3.11" whose packages pip has put us among; empty: none, or we do not know.
std::string InstalledByPipFor(const ProgramLookup& lookup) {
  if (!lookup.list_directory || lookup.binary_directory.empty()) return "";
  const std::string above = DirectoryOf(lookup.binary_directory) + "/lib";
  for (const std::string& python : lookup.list_directory(above)) {
    if (!absl::StartsWith(python, "python3")) continue;
    for (const char* packages : {"/site-packages", "/dist-packages"}) {
      const std::string module = absl::StrCat(above, "/", python, packages, "/muster/__init__.py");
      if (lookup.kind_of(module) != FileKind::kAbsent) return python;
    }
  }
  return "";
}

// pip puts programs beside the interpreter whose packages it fills; but /usr/local may have another
// one than Debian's, whose packages lie there too. Empty: that interpreter is not beside us.
std::string PythonOfPip(const ProgramLookup& lookup, const std::string& version) {
  bool has_other = false;
  for (const std::string& name : lookup.list_directory(lookup.binary_directory)) {
    const bool is_version =
        absl::StartsWith(name, "python3.") && absl::c_all_of(name.substr(8), absl::ascii_isdigit);
    has_other = has_other || (is_version && name != version);
  }
  const std::vector<std::string> names =
      has_other ? std::vector<std::string>{version} : std::vector<std::string>{"python3", "python"};
  for (const std::string& name : names) {
    const std::string python = absl::StrCat(lookup.binary_directory, "/", name);
    if (IsExecutable(lookup, python)) return python;
  }
  return "";
}

absl::StatusOr<Python> FindPython(const ProgramLookup& lookup) {
  const std::string chosen = VariableOrEmpty(lookup.environment, "PYTHON_EXEC");
  if (!chosen.empty()) return PythonFromVariable(lookup, chosen);
  if (const std::string version = InstalledByPipFor(lookup); !version.empty()) {
    std::string python = PythonOfPip(lookup, version);
    if (!python.empty()) {
      const std::string other = OtherOnPath(lookup, python);
      return Python{std::move(python), "the one that pip installed muster for", other};
    }
  }
  std::vector<std::pair<std::string, std::string>> directories;  // and why
  // A link to us elsewhere, such as /venv/bin/torchrun, speaks for the Python beside it; our own
  // folder does not.
  const std::string link =
      HasSlash(lookup.invoked_as) ? lookup.invoked_as : FindOnPath(lookup, lookup.invoked_as);
  if (HasSlash(link) && DirectoryOf(link) != lookup.binary_directory) {
    directories.emplace_back(DirectoryOf(link), absl::StrCat("the one beside ", link));
  }
  const std::string venv = VariableOrEmpty(lookup.environment, "VIRTUAL_ENV");
  if (!venv.empty() && !IsCondaFirstOnPath(lookup.environment)) {
    directories.emplace_back(venv + "/bin", "VIRTUAL_ENV");
  }
  for (const auto& [directory, why] : directories) {
    for (const char* name : {"/python3", "/python"}) {
      const std::string python = directory + name;
      if (IsExecutable(lookup, python)) return Python{python, why, OtherOnPath(lookup, python)};
    }
  }
  for (const char* name : {"python3", "python"}) {
    if (std::string found = FindOnPath(lookup, name); !found.empty())
      return Python{std::move(found), "the first on PATH"};
  }
  return absl::InvalidArgumentError(
      "there is no python3 on PATH; set PYTHON_EXEC, or use --no_python for a program that is not "
      "Python's");
}

absl::StatusOr<WorkerProgram> WithPython(const ProgramLookup& lookup, const Command& rest) {
  MUSTER_ASSIGN_OR_RETURN(Python python, FindPython(lookup));
  WorkerProgram program{.python = std::move(python.path),
                        .python_why = std::move(python.why),
                        .python_on_path = std::move(python.on_path)};
  program.argv = {program.python, "-u"};
  program.argv.insert(program.argv.end(), rest.begin(), rest.end());
  return program;
}

// The program that a `#!` line names: of "#!/usr/bin/env -S python3 -u" it is python3.
std::string InterpreterOf(absl::string_view head) {
  head.remove_prefix(2);
  for (absl::string_view word : absl::StrSplit(head.substr(0, head.find('\n')),
                                               absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::string name = NameOf(std::string(word));
    const bool is_of_env =
        name == "env" || absl::StartsWith(name, "-") || absl::StrContains(name, '=');
    if (!is_of_env) return name;
  }
  return "";
}

// An executable that is a text of Python's. Without `#!` the kernel could not run it either; a
// machine program has a NUL among its first bytes.
bool IsPythonText(const ProgramLookup& lookup, const std::string& path) {
  const std::string head = lookup.head_of(path);
  if (absl::StartsWith(head, "#!")) return absl::StartsWith(InterpreterOf(head), "python");
  return !absl::StrContains(head, '\0') && !head.empty();
}

bool HasPythonSuffix(const std::string& name) {
  return absl::EndsWith(name, ".py") || absl::EndsWith(name, ".pyc") ||
         absl::EndsWith(name, ".pyz");
}

bool HasMain(const ProgramLookup& lookup, const std::string& directory) {
  const FileKind kind = lookup.kind_of(directory + "/__main__.py");
  return kind == FileKind::kFile || kind == FileKind::kExecutable;
}

// A bare name: one of our own programs, or one on PATH. Empty if neither.
std::string FindProgram(const ProgramLookup& lookup, const std::string& name) {
  const std::string beside = absl::StrCat(lookup.binary_directory, "/", name);
  if (!lookup.binary_directory.empty() && IsExecutable(lookup, beside)) return beside;
  return FindOnPath(lookup, name);
}

absl::Status NoMain(const std::string& directory) {
  return absl::InvalidArgumentError(
      absl::StrCat(directory, " is a folder without a __main__.py, so Python cannot run it"));
}

absl::StatusOr<WorkerProgram> ResolvePythonFile(const Program& program,
                                                const ProgramLookup& lookup) {
  const FileKind kind = lookup.kind_of(program.name);
  if (kind == FileKind::kAbsent) return NoSuchFile(lookup, program.name);
  if (kind == FileKind::kDirectory && !HasMain(lookup, program.name)) return NoMain(program.name);
  return WithPython(lookup, {program.name});
}

absl::StatusOr<WorkerProgram> ResolveScript(const Program& program, const ProgramLookup& lookup) {
  const std::string& name = program.name;
  const FileKind kind = lookup.kind_of(name);
  const bool is_here = kind == FileKind::kFile || kind == FileKind::kExecutable ||
                       (kind == FileKind::kDirectory && HasMain(lookup, name));
  if (!is_here && !HasSlash(name) && !HasPythonSuffix(name)) {
    // Installed with the interpreter that its first line names.
    if (std::string found = FindProgram(lookup, name); !found.empty()) return Executed({found});
  }
  if (kind == FileKind::kExecutable && !HasPythonSuffix(name) && !IsPythonText(lookup, name))
    return Executed({WithSlash(name)});
  if (kind != FileKind::kAbsent) return ResolvePythonFile(program, lookup);
  if (HasSlash(name) || HasPythonSuffix(name)) return NoSuchFile(lookup, name);
  return absl::InvalidArgumentError(absl::StrCat("there is no file ", name, " here and no program ",
                                                 name, " beside muster or on PATH",
                                                 NearestFile(lookup, name)));
}

absl::StatusOr<WorkerProgram> ResolveExecutable(const Program& program,
                                                const ProgramLookup& lookup) {
  const std::string& name = program.name;
  if (!HasSlash(name)) {
    const std::string found = FindOnPath(lookup, name);
    if (!found.empty()) return Executed({found});
    return absl::InvalidArgumentError(
        absl::StrCat("--no_python: there is no program ", name, " on PATH",
                     lookup.kind_of(name) == FileKind::kAbsent
                         ? ""
                         : absl::StrCat("; write ./", name, " for the file in this folder")));
  }
  const FileKind kind = lookup.kind_of(name);
  if (kind == FileKind::kExecutable) return Executed({name});
  if (kind == FileKind::kAbsent) return NoSuchFile(lookup, name);
  return absl::InvalidArgumentError(absl::StrCat(
      "--no_python: ", name, kind == FileKind::kDirectory ? " is a folder" : " is not executable"));
}

absl::StatusOr<WorkerProgram> ResolveStart(const Program& program, const ProgramLookup& lookup) {
  if (program.run_path) return ResolvePythonFile(program, lookup);
  switch (program.kind) {
    case Program::Kind::kModule:
      return WithPython(lookup, {"-m", program.name});
    case Program::Kind::kNoPython:
      return ResolveExecutable(program, lookup);
    case Program::Kind::kScript:
      break;
  }
  return ResolveScript(program, lookup);
}

}  // namespace

absl::StatusOr<WorkerProgram> ResolveWorkerCommand(const Program& program,
                                                   const ProgramLookup& lookup) {
  MUSTER_ASSIGN_OR_RETURN(WorkerProgram resolved, ResolveStart(program, lookup));
  resolved.argv.insert(resolved.argv.end(), program.args.begin(), program.args.end());
  return resolved;
}

absl::StatusOr<std::vector<std::string>> ResolveNodeCheck(const std::string& program,
                                                          const ProgramLookup& lookup) {
  const auto bad = [&](absl::string_view what, absl::string_view what_would_do) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node_check=", program, ": ", what, "; ", what_would_do));
  };
  const FileKind kind = lookup.kind_of(program);
  if (!HasSlash(program)) {
    const std::string found = FindProgram(lookup, program);
    if (!found.empty()) return Command{found};
    const std::string muster = absl::StrCat(lookup.binary_directory, "/muster");
    const bool is_doctor = program == "muster-doctor" && IsExecutable(lookup, muster);
    if (is_doctor) return Command{muster, "doctor"};
    return bad(absl::StrCat("there is no program of this name beside muster or on PATH"),
               kind == FileKind::kAbsent
                   ? "give its path, or --node_check=muster-doctor"
                   : absl::StrCat("write ./", program, " for the file in this folder"));
  }
  switch (kind) {
    case FileKind::kExecutable:
      return Command{program};
    case FileKind::kAbsent:
      return bad(NoSuchFile(lookup, program).message(), "give an executable program");
    case FileKind::kDirectory:
      return bad("it is a folder", "give an executable program");
    case FileKind::kFile:
      break;
  }
  return bad("it is not executable", absl::StrCat("chmod +x ", program, " makes it so"));
}

}  // namespace muster::launcher
