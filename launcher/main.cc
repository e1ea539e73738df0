// muster: parse the subcommand, run it. Called by the name of another launcher it takes that
// launcher's line, and called musterd it is the rendezvous daemon.
#include <sys/prctl.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/guardian/guardian.h"
#include "launcher/commands/commands.h"
#include "launcher/peers/first_word.h"
#include "launcher/peers/peer_line.h"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/io/descriptors.h"
#include "proto/io/log.h"
#include "proto/io/openssl_configuration.h"
#include "rendezvous/server/musterd.h"

namespace muster::launcher {
namespace {

struct Subcommand {
  const char* name;
  const char* help;
  int (*run)(const Invocation& invocation);  // returns the exit code
  bool is_peer = false;                      // another launcher's name, which a link may have too
};

// The first is what no subcommand means.
constexpr Subcommand kSubcommands[] = {
    {"run", "start and watch the workers of this node; its options follow", RunCommand},
    {"agent", "started by `muster run --hostfile` on each host; not for direct use", AgentCommand},
    {"status", "show the health, nodes, steps and restarts of a job", StatusCommand},
    {"stacks", "show the Python and native stacks of the ranks of a job", StacksCommand},
    {"logs", "print lines from the log files of the ranks of a job", LogsCommand},
    {"top", "watch the ranks, nodes and GPUs of a job", TopCommand},
    {"report", "tell what happened in a job that kept its logs", ReportCommand},
    {"explain", "tell in prose what an incident file says", ExplainCommand},
    {"metrics_token", "print the token with which Prometheus may read metrics",
     MetricsTokenCommand},
    {"stop", "end a job after a step that all its ranks agree on", StopCommand},
    {"drain", "take a node out of a job after a step that all its ranks agree on", DrainCommand},
    {"plan", "print the plan, memory and traffic of a training job without running it",
     PlanCommand},
    {"export", "write a checkpoint's arrays whole, as any reader of safetensors takes them",
     ExportCommand},
    {"bench", "measure how a program scales with the number of ranks", BenchCommand},
    {"doctor", "check this node, or several, for what makes jobs fail or crawl", DoctorCommand},
    {"link", "create links to muster under the names of other launchers", LinkCommand},
    {"torchrun", "same as `run`", RunCommand},
    {"accelerate", "the command line of `accelerate launch`", AccelerateCommand, true},
    {"deepspeed", "the command line of `deepspeed`", DeepSpeedCommand, true},
    {"ilab", "the `muster run` that does what `ilab model train` would", InstructLabCommand, true},
};

// Before the initialisers of libraries, of which gRPC's opens a descriptor.
[[gnu::section(".preinit_array"), gnu::used]] void (*first_of_all)() = OpenStandardStreams;

constexpr char kDaemon[] = "musterd";

constexpr char kHelp[] =
    "usage: muster [run] [options] script [script arguments]\n"
    "\n"
    "Starts the workers of a training job on this node and joins the job's other nodes; takes the\n"
    "options and environment of torchrun. `run` is the default subcommand.\n"
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
    std::printf("  %-13s  %s\n", subcommand.name, subcommand.help);
  }
  std::fputs(kHelpEnd, stdout);
}

// The subcommand that a link of a launcher's name stands for; adds what the name implies to `args`.
const Subcommand* FindByLink(const std::string& name, std::vector<std::string>& args) {
  if (name == "torchrun") return &kSubcommands[0];
  if (name == "muster-doctor") args.insert(args.begin(), "doctor");  // a round hook has no options
  if (name == "accelerate-launch") args.insert(args.begin(), "launch");
  const std::string known = name == "accelerate-launch" ? "accelerate"
                            : name == "ds"              ? "deepspeed"
                                                        : name;
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.is_peer && known == subcommand.name) return &subcommand;
  }
  return nullptr;
}

// The one that `args` begin with, which it is taken out of; nullptr if they begin with none.
const Subcommand* TakeSubcommand(std::vector<std::string>& args) {
  for (const Subcommand& subcommand : kSubcommands) {
    if (args.empty() || args[0] != subcommand.name) continue;
    args.erase(args.begin());
    return &subcommand;
  }
  return nullptr;
}

absl::Status CheckScript(const std::string& word, const std::string& binary_directory) {
  std::vector<std::string> names;
  for (const Subcommand& subcommand : kSubcommands) names.emplace_back(subcommand.name);
  return CheckFirstWord(word, names, [&](const std::string& name) {
    return access(name.c_str(), F_OK) == 0 ||
           access(absl::StrCat(binary_directory, "/", name).c_str(), F_OK) == 0;
  });
}

int Main(int argc, char** argv) {
  IgnoreOpenSslConfiguration();
  std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string name = argc > 0 ? std::string(argv[0]) : "muster";
  const std::string link = name.substr(name.rfind('/') + 1);
  if (link == kDaemon) {
    prctl(PR_SET_NAME, kDaemon);
    LeaveWith(rendezvous::RunMusterd(args, EnvironmentOf(environ)));
  }
  if (link == agent::kDeathNoticeProgram) LeaveWith(DeathNoticeCommand());
  const std::string binary_directory = BinaryDirectory();
  const Subcommand* subcommand = FindByLink(link, args);
  if (subcommand == nullptr && !args.empty()) {
    if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
      PrintHelp();
      args = {"--help"};
    }
    subcommand = TakeSubcommand(args);
    if (subcommand == nullptr) {
      if (const absl::Status status = CheckScript(args[0], binary_directory); !status.ok()) {
        log::Write(log::Level::kError, "refused", status.message());
        return ExitCodeOf(status);
      }
    }
  }
  if (subcommand == nullptr) subcommand = &kSubcommands[0];
  EnvironmentMap environment = EnvironmentOf(environ);
  if (subcommand->run == RunCommand && TakeModuleLine(args, environment)) {
    subcommand = TakeSubcommand(args);
  }
  const Invocation invocation = {.invoked_as = name,
                                 .binary_directory = binary_directory,
                                 .args = std::move(args),
                                 .environment = std::move(environment)};
  LeaveWith(RunUntilUsedUp("muster", kExitFailure, [&] { return subcommand->run(invocation); }));
}

}  // namespace
}  // namespace muster::launcher

int main(int argc, char** argv) { return muster::launcher::Main(argc, argv); }
