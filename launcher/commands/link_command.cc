// `muster link DIR`: makes the links by which other launchers' names reach this program.
#include "launcher/commands/commands.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds"};
constexpr char kHelp[] =
    "usage: muster link DIR\n"
    "\n"
    "Creates links to this program in the folder DIR, under the names of the launchers whose "
    "command\n"
    "lines it takes: torchrun, accelerate, accelerate-launch, deepspeed, ds. Put DIR before theirs "
    "on\n"
    "PATH.\n";

absl::Status CannotWrite(const fs::path& path, const std::error_code& why) {
  return absl::InvalidArgumentError(absl::StrCat(path.native(), ": ", why.message()));
}

// A link that an earlier `muster link` made may point to a program that has moved since.
absl::Status CheckMayReplace(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return absl::OkStatus();
  if (status.type() == fs::file_type::symlink &&
      fs::read_symlink(path, error).filename() == "muster") {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path.native(), " already exists and is not a link to muster; choose another ",
                   "folder, or remove it"));
}

absl::Status MakeLinks(const fs::path& directory, const std::string& program) {
  std::error_code error;
  if (fs::create_directories(directory, error); error) return CannotWrite(directory, error);
  for (const char* name : kNames) MUSTER_RETURN_IF_ERROR(CheckMayReplace(directory / name));
  for (const char* name : kNames) {
    const fs::path link = directory / name;
    if (fs::remove(link, error); error) return CannotWrite(link, error);
    if (fs::create_symlink(program, link, error); error) return CannotWrite(link, error);
  }
  return absl::OkStatus();
}

}  // namespace

int LinkCommand(const Invocation& invocation) {
  const std::vector<std::string>& args = invocation.args;
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    return std::fputs(kHelp, stdout) < 0 ? kExitFailure : 0;
  }
  absl::Status status = absl::OkStatus();
  if (args.size() != 1 || absl::StartsWith(args[0], "-")) {
    status = absl::InvalidArgumentError(
        absl::StrCat("expected one folder, got '", absl::StrJoin(args, " "), "'"));
  } else {
    status = MakeLinks(args[0], invocation.binary_directory + "/muster");
  }
  if (!status.ok()) {
    std::fprintf(stderr, "muster link: %s\n", std::string(status.message()).c_str());
    return ExitCodeOf(status);
  }
  return std::printf("%s: %s\n", args[0].c_str(), absl::StrJoin(kNames, ", ").c_str()) < 0
             ? kExitFailure
             : 0;
}

}  // namespace muster::launcher
