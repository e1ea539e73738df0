// muster: parse the subcommand, run it. A link named torchrun is `muster run`.
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>
#include <vector>

#include "launcher/commands/run_command.h"

namespace {

constexpr char kVersion[] = "muster 0.1.0\n";
constexpr char kHelp[] =
    "usage: muster [run] [options] script [script arguments]\n"
    "\n"
    "Starts the workers of a training job on this node and meets the job's other nodes; takes "
    "torchrun's\n"
    "options and environment. A first argument that is no subcommand means `run`.\n"
    "\n"
    "subcommands:\n"
    "  run        start and watch the workers of this node; its options follow\n"
    "\n"
    "musterd is the rendezvous for many jobs; without it the first node hosts one.\n"
    "\n";

std::string BinaryDirectory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return "";
  const std::string binary(path, length);
  return binary.substr(0, binary.rfind('/'));
}

muster::EnvironmentMap ReadEnvironment() {
  muster::EnvironmentMap environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string name = argc > 0 ? std::string(argv[0]) : "muster";
  const bool is_torchrun = name.substr(name.rfind('/') + 1) == "torchrun";
  if (!is_torchrun && !args.empty()) {
    if (args[0] == "--version") return std::fputs(kVersion, stdout) < 0;
    if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
      std::fputs(kHelp, stdout);
      args = {"--help"};
    }
    if (args[0] == "run") args.erase(args.begin());
  }
  return muster::launcher::RunCommand({.invoked_as = name,
                                       .binary_directory = BinaryDirectory(),
                                       .args = std::move(args),
                                       .environment = ReadEnvironment()});
}
