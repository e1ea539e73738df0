// The command line of `deepspeed`: which of its options mean something here.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/hosts/one_host.h"
#include "launcher/peers/peer_line.h"
#include "launcher/peers/peer_table.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

enum class Goes { kRun, kNothing, kHere, kRefused };

constexpr char kActivate[] = "/bin/activate";
// DeepSpeed's own number.
constexpr char kElasticRestarts[] = "--max_restarts=100";

constexpr PeerOption<Goes> kOptionRows[] = {
    {"hostfile", true, Goes::kRun, "", 'H'},
    {"include", true, Goes::kRun, "", 'i'},
    {"exclude", true, Goes::kRun, "", 'e'},
    {"num_nodes", true, Goes::kRun},
    {"num_gpus", true, Goes::kRun, "", 0, "num_accelerators"},
    {"master_port", true, Goes::kRun},
    {"master_addr", true, Goes::kRun},
    {"node_rank", true, Goes::kHere, "with --no_ssh: the place of this machine among the hosts"},
    {"launcher", true, Goes::kHere},
    {"launcher_args", true, Goes::kHere},
    {"module", false, Goes::kRun},
    {"no_python", false, Goes::kRun},
    {"no_local_rank", false, Goes::kRun},
    {"no_ssh", false, Goes::kHere, "becomes --node_rank=R beside the host file"},
    {"no_ssh_check", false, Goes::kNothing,
     "hosts are not checked beforehand; one that cannot be reached is named"},
    {"force_multi", false, Goes::kHere},
    {"save_pid", false, Goes::kHere, "into /tmp/<pid>.deepspeed, while the job runs"},
    {"enable_each_rank_log", true, Goes::kHere, "becomes --log_dir=VALUE --redirects=3"},
    {"autotuning", true, Goes::kRefused,
     "the autotuner is a program of DeepSpeed's own: python -m deepspeed.launcher.runner "
     "--autotuning .."},
    {"bind_cores_to_rank", false, Goes::kHere,
     "becomes --numa_binding=exclusive --omp_threads=auto"},
    {"bind_core_list", true, Goes::kRefused,
     "confine the launcher, whose CPUs workers share: taskset -c LIST muster .."},
    {"ssh_port", true, Goes::kRun},
    {"venv_script", true, Goes::kHere, "DIR/bin/activate becomes VIRTUAL_ENV=DIR on every host"},
    {"elastic_training", false, Goes::kHere,
     "becomes --nnodes=MIN:MAX --max_restarts=100 --rdzv_endpoint=MASTER_ADDR, on each node"},
    {"min_elastic_nodes", true, Goes::kHere, "the MIN of --elastic_training"},
    {"max_elastic_nodes", true, Goes::kHere, "the MAX of --elastic_training"},
    {"log_level", true, Goes::kHere},
    {"quiet", false, Goes::kHere, "becomes --log_level=error", 'q'},
};

constexpr char kDeepSpeedUsage[] =
    "usage: muster deepspeed [options of deepspeed] SCRIPT [arguments]\n"
    "\n"
    "Becomes `muster run` with the hosts, workers and variables that DeepSpeed would have.\n";

absl::Status CheckLauncher(const CommandLine& line) {
  const Given* launcher = line.Find("launcher");
  const std::string name = launcher == nullptr ? "pdsh" : absl::AsciiStrToLower(launcher->text());
  if (name != "pdsh") {
    const bool is_mpi = name == "openmpi" || name == "mpich" || name == "impi" || name == "mvapich";
    return command_line::At(
        launcher->source, launcher->text(),
        absl::InvalidArgumentError(
            name == "slurm"
                ? "Slurm starts muster itself: srun --ntasks-per-node=1 muster run SCRIPT"
            : is_mpi ? "mpirun starts muster itself: mpirun -npernode 1 muster run SCRIPT"
                     : "expected pdsh, whose hosts muster reaches over ssh by itself"));
  }
  const Given* arguments = line.Find("launcher_args");
  if (arguments == nullptr || arguments->text().empty()) return absl::OkStatus();
  return command_line::At(
      arguments->source, arguments->text(),
      absl::InvalidArgumentError(
          "pdsh is not used; put options of ssh into ~/.ssh/config, or into a file for "
          "muster run --ssh_config=FILE"));
}

// The environment that `source FILE` would activate.
absl::Status TakeEnvironment(const CommandLine& line, EnvironmentMap& environment) {
  const Given* script = line.Find("venv_script");
  if (script == nullptr || script->text() == "None") return absl::OkStatus();
  if (!absl::EndsWith(script->text(), kActivate)) {
    return command_line::At(
        script->source, script->text(),
        absl::InvalidArgumentError("expected DIR/bin/activate of a virtual environment; set other "
                                   "variables before, or in ~/.deepspeed_env"));
  }
  const std::string directory(absl::StripSuffix(script->text(), kActivate));
  environment["VIRTUAL_ENV"] = directory;
  environment["PYTHON_EXEC"] = directory + "/bin/python";
  return absl::OkStatus();
}

// A job whose nodes come and go: each is started by this line, and they meet at --master_addr.
// `args` are those of `muster run` so far.
absl::Status TakeElasticNodes(const CommandLine& line, bool has_hosts,
                              std::vector<std::string>& args) {
  const auto given = [&](const char* name) { return line.Find(name); };
  if (!line.IsOn("elastic_training")) {
    for (const char* name : {"min_elastic_nodes", "max_elastic_nodes"}) {
      if (given(name) == nullptr) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(given(name)->source, ": belongs to --elastic_training"));
    }
    return absl::OkStatus();
  }
  if (has_hosts || given("num_nodes") != nullptr) {
    return absl::InvalidArgumentError(
        "--elastic_training: a host file starts the nodes that it names, and no more come; run "
        "this line on each node, without --hostfile and --num_nodes");
  }
  if (given("master_addr") == nullptr || given("max_elastic_nodes") == nullptr) {
    return absl::InvalidArgumentError(
        "--elastic_training: nodes meet at --master_addr=HOST, at most --max_elastic_nodes=N");
  }
  const Given* least = given("min_elastic_nodes");
  const Given* port = given("master_port");
  std::erase_if(args, [](const std::string& arg) { return absl::StartsWith(arg, "--master_"); });
  args.insert(args.end(), {absl::StrCat("--nnodes=", least == nullptr ? "1" : least->text(), ":",
                                        given("max_elastic_nodes")->text()),
                           kElasticRestarts, "--rdzv_backend=c10d",
                           absl::StrCat("--rdzv_endpoint=", given("master_addr")->text(), ":",
                                        port == nullptr ? "29500" : port->text())});
  return absl::OkStatus();
}

// The user gives this line to each host without ssh, with the place of that host.
absl::Status TakePlace(const CommandLine& line, bool has_hosts, std::vector<std::string>& args) {
  const Given* rank = line.Find("node_rank");
  if (line.IsOn("no_ssh") != (rank != nullptr)) {
    return absl::InvalidArgumentError(
        "--no_ssh and --node_rank=R belong together: the line is given to each host of the host "
        "file, with its place among them from 0");
  }
  if (rank == nullptr) return absl::OkStatus();
  if (has_hosts) {
    args.push_back("--node_rank=" + rank->text());
  } else if (rank->text() != "0") {
    return command_line::At(
        rank->source, rank->text(),
        absl::InvalidArgumentError("without a host file there is this machine alone, which is 0"));
  }
  return absl::OkStatus();
}

bool ChoosesWorkers(const CommandLine& line) {
  for (const char* choice : {"hostfile", "include", "exclude", "num_nodes", "num_gpus"}) {
    if (line.Find(choice) != nullptr) return true;
  }
  return false;
}

void AppendLogLevel(const CommandLine& line, std::vector<std::string>& args) {
  const Given* level = line.Find("log_level");
  if (line.IsOn("quiet") || (level != nullptr && level->text() == "critical")) {
    args.push_back("--log_level=error");
  } else if (level != nullptr) {
    args.push_back("--log_level=" + level->text());
  }
}

}  // namespace

absl::StatusOr<PeerLine> ReadDeepSpeedLine(const std::vector<std::string>& args,
                                           bool has_usual_host_file) {
  const command_line::Grammar grammar =
      PeerGrammar("muster deepspeed", kDeepSpeedUsage, kOptionRows);
  MUSTER_ASSIGN_OR_RETURN(const CommandLine line, command_line::Split(grammar, args, {}));
  PeerLine out{.print = line.print};
  if (!out.print.empty()) return out;
  MUSTER_RETURN_IF_ERROR(RefuseOptions(line, kOptionRows));
  MUSTER_RETURN_IF_ERROR(CheckLauncher(line));
  AppendRunOptions(line, kOptionRows, out.args);
  const bool has_hosts = has_usual_host_file || line.Find("hostfile") != nullptr;
  if (line.IsOn("force_multi") && !has_hosts) {
    return absl::InvalidArgumentError(
        "--force_multi: a job on other hosts needs --hostfile=FILE, with lines HOST slots=N");
  }
  if (has_usual_host_file && line.Find("hostfile") == nullptr) {
    out.args.push_back(absl::StrCat("--hostfile=", kUsualHostFile));
  }
  MUSTER_RETURN_IF_ERROR(TakePlace(line, has_hosts, out.args));
  MUSTER_RETURN_IF_ERROR(TakeElasticNodes(line, has_hosts, out.args));
  MUSTER_RETURN_IF_ERROR(TakeEnvironment(line, out.environment));
  // A worker for each GPU that is seen.
  if (!has_usual_host_file && !ChoosesWorkers(line)) out.args.push_back("--include=localhost");
  if (const Given* logs = line.Find("enable_each_rank_log"); logs && logs->text() != "None") {
    out.args.insert(out.args.end(), {"--log_dir=" + logs->text(), "--redirects=3"});
  }
  if (line.IsOn("bind_cores_to_rank")) {
    out.args.insert(out.args.end(), {"--numa_binding=exclusive", "--omp_threads=auto"});
  }
  AppendLogLevel(line, out.args);
  out.saves_pid = line.IsOn("save_pid");
  if (line.script.empty()) {
    return absl::InvalidArgumentError(
        "no script was given; usage: muster deepspeed [options] SCRIPT [arguments]");
  }
  AppendLiteralScript(line, out.args);
  return out;
}

}  // namespace muster::launcher
