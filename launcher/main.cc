// muster: parse the subcommand, run it. A link named torchrun is `muster run`.
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "launcher/commands/agent_command.h"
#include "launcher/commands/plan_command.h"
#include "launcher/commands/run_command.h"
#include "launcher/commands/stop_command.h"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/io/descriptors.h"

namespace {

using muster::launcher::AgentCommand;
using muster::launcher::DrainCommand;
using muster::launcher::Invocation;
using muster::launcher::PlanCommand;
using muster::launcher::RunCommand;
using muster::launcher::StopCommand;

struct Subcommand {
  const char* name;
  const char* help;
  int (*run)(const Invocation& invocation);  // returns the exit code
};

// The first is what no subcommand means.
constexpr Subcommand kSubcommands[] = {
    {"run", "start and watch the workers of this node; its options follow", RunCommand},
    {"agent", "what `muster run --hostfile` starts on each host; not for people", AgentCommand},
    {"stop", "end a job after a step that all its ranks agree on", StopCommand},
    {"drain", "take a node out of a job, after such a step", DrainCommand},
    {"plan", "print what a training job would do and need, without running it", PlanCommand},
};

constexpr char kHelp[] =
    "usage: muster [run] [options] script [script arguments]\n"
    "\n"
    "Starts the workers of a training job on this node and joins the job's other nodes; takes the\n"
    "options and environment of torchrun. Without a subcommand it is `run`.\n"
    "\n"
    "subcommands:\n";
constexpr char kHelpEnd[] =
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

void PrintHelp() {
  std::fputs(kHelp, stdout);
  for (const Subcommand& subcommand : kSubcommands) {
    std::printf("  %-9s  %s\n", subcommand.name, subcommand.help);
  }
  std::fputs(kHelpEnd, stdout);
}

// The one that `args` begin with, which it is taken out of.
const Subcommand& TakeSubcommand(std::vector<std::string>& args) {
  for (const Subcommand& subcommand : kSubcommands) {
    if (args.empty() || args[0] != subcommand.name) continue;
    args.erase(args.begin());
    return subcommand;
  }
  return kSubcommands[0];
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string name = argc > 0 ? std::string(argv[0]) : "muster";
  const bool is_torchrun = name.substr(name.rfind('/') + 1) == "torchrun";
  const Subcommand* subcommand = &kSubcommands[0];
  if (!is_torchrun && !args.empty()) {
    if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
      PrintHelp();
      args = {"--help"};
    }
    subcommand = &TakeSubcommand(args);
  }
  const Invocation invocation = {.invoked_as = name,
                                 .binary_directory = BinaryDirectory(),
                                 .args = std::move(args),
                                 .environment = muster::EnvironmentOf(environ)};
  return muster::RunUntilUsedUp("muster", muster::kExitFailure,
                                [&] { return subcommand->run(invocation); });
}
