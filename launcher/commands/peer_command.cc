// `muster accelerate`, `deepspeed` and `ilab`: perform the command lines of those launchers.
#include "launcher/commands/commands.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/hosts/one_host.h"
#include "launcher/node/log_setup.h"
#include "launcher/node/node_setup.h"
#include "launcher/peers/peer_line.h"
#include "proto/base/environment.h"
#include "proto/io/log.h"

namespace muster::launcher {
namespace {

int RunLine(const absl::StatusOr<PeerLine>& line, const Invocation& invocation) {
  if (!line.ok()) return RefuseRun(line.status(), invocation);
  if (!line->print.empty()) return std::fputs(line->print.c_str(), stdout) < 0 ? 1 : 0;
  Invocation run = invocation;
  run.args = line->args;
  run.sources = line->sources;
  for (const auto& [name, value] : line->environment) run.environment[name] = value;
  for (const std::string& note : line->notes) log::Write(log::Level::kInfo, "accelerate", note);
  if (!line->saves_pid) return RunCommand(run);
  // The path at which DeepSpeed's users look for it. A file of another's life is not written over.
  const std::string path = absl::StrCat("/tmp/", getpid(), ".deepspeed");
  std::FILE* const file = std::fopen(path.c_str(), "wx");
  if (file == nullptr) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat("--save_pid: cannot write ", path, ": ", std::strerror(errno))));
  }
  std::fprintf(file, "%d", getpid());
  std::fclose(file);
  const int code = RunCommand(run);
  unlink(path.c_str());
  return code;
}

// Another program of that name on PATH; empty if there is none but ours.
std::string FindReal(const std::string& name, const Invocation& invocation) {
  char own[PATH_MAX], candidate[PATH_MAX];
  if (realpath("/proc/self/exe", own) == nullptr) return "";
  const std::string path = VariableOrEmpty(invocation.environment, "PATH");
  for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const std::string found = absl::StrCat(directory, "/", name);
    if (access(found.c_str(), X_OK) != 0 || realpath(found.c_str(), candidate) == nullptr) continue;
    struct stat info {};
    if (std::strcmp(own, candidate) != 0 && stat(candidate, &info) == 0 && S_ISREG(info.st_mode)) {
      return found;
    }
  }
  return "";
}

// Set for the real program, so that copies of ours under its name do not go on as each other for
// ever.
constexpr char kBecame[] = "MUSTER_WENT_ON_AS";

// Goes on as the real program. Returns only where there is none.
int BecomeReal(const std::string& name, const std::string& package, const Invocation& invocation) {
  const bool has_gone_on = VariableOrEmpty(invocation.environment, kBecame) == name;
  const std::string real = has_gone_on ? "" : FindReal(name, invocation);
  std::string line = name;
  for (const std::string& arg : invocation.args) absl::StrAppend(&line, " ", arg);
  if (real.empty()) {
    return Refuse(
        absl::InvalidArgumentError(absl::StrCat("`", line, "` is for the program ", name,
                                                " itself, which is not on PATH here: "
                                                "install it (pip install ",
                                                package, "), or add its folder to PATH")));
  }
  std::vector<std::string> words = {real};
  words.insert(words.end(), invocation.args.begin(), invocation.args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  setenv(kBecame, name.c_str(), 1);
  execv(real.c_str(), argv.data());
  return Refuse(
      absl::InvalidArgumentError(absl::StrCat("cannot run ", real, ": ", std::strerror(errno))));
}

}  // namespace

int AccelerateCommand(const Invocation& invocation) {
  if (invocation.args.empty() || invocation.args[0] != "launch") {
    return BecomeReal("accelerate", "accelerate", invocation);
  }
  const std::vector<std::string> args(invocation.args.begin() + 1, invocation.args.end());
  return RunLine(ReadAccelerateLine(args, invocation.environment, ViewOfThisMachine(invocation)),
                 invocation);
}

int DeepSpeedCommand(const Invocation& invocation) {
  const bool has_host_file = access(kUsualHostFile, R_OK) == 0;
  return RunLine(ReadDeepSpeedLine(invocation.args, has_host_file), invocation);
}

int InstructLabCommand(const Invocation& invocation) {
  const std::vector<std::string>& args = invocation.args;
  // Options of `ilab` itself may stand in front of the two words.
  for (size_t i = 0; i + 1 < args.size(); ++i) {
    if (args[i] != "model" || args[i + 1] != "train") continue;
    const absl::StatusOr<std::string> line =
        MusterLineForInstructLab({args.begin() + static_cast<std::ptrdiff_t>(i) + 2, args.end()});
    if (!line.ok()) return RefuseRun(line.status(), invocation);
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat("`ilab model train` prepares data and starts its own trainer, which muster "
                     "starts by\n  ",
                     *line,
                     "\nThe other options of ilab are main_ds's, spelled with _; with a link named "
                     "torchrun to muster first on PATH, ilab starts its trainer so by itself")));
  }
  return BecomeReal("ilab", "instructlab", invocation);
}

}  // namespace muster::launcher
