#include "launcher/line/flags.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/config/instructlab_config.h"
#include "launcher/hosts/one_host.h"
#include "launcher/line/run_options.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

// Puts together what the options of one command line say.
class Assembly {
 public:
  Assembly(CommandLine& line, RunChoices& choices, std::string fresh_run_id)
      : line_(line),
        choices_(choices),
        spec_(choices.spec),
        fresh_run_id_(std::move(fresh_run_id)) {}

  // Called before values are read: what --standalone overrules need not even be well formed.
  void ApplyStandalone() {
    if (!line_.IsOn("standalone")) return;
    for (const char* name : {"rdzv_backend", "rdzv_endpoint", "rdzv_id"}) {
      const Given* given = line_.Find(name);
      if (given == nullptr) continue;
      Warn(absl::StrCat(given->source, "=", given->text(), " is ignored: --standalone chooses it"));
      line_.values.erase(name);
    }
    spec_.backend = RendezvousBackend::kC10d;
  }

  absl::Status Finish() {
    spec_.min_nodes = choices_.nodes.min;
    spec_.max_nodes = choices_.nodes.max;
    if (line_.IsOn("standalone") && !spec_.is_single_node()) {
      const Given& nnodes = *line_.Find("nnodes");
      return command_line::At(nnodes.source, nnodes.text(),
                              absl::InvalidArgumentError("--standalone is for a job on one node; "
                                                         "leave one of them out"));
    }
    ApplyRendezvousConf();
    WarnOfNodeRank();
    ChooseRunId();
    PlaceEndpoint();
    ApplyStatic();
    return TakeProgram();
  }

 private:
  void Warn(std::string text) { line_.warnings.push_back(std::move(text)); }

  bool IsStatic() const { return spec_.backend == RendezvousBackend::kStatic; }

  template <typename Value>
  static void Take(const std::optional<Value>& given, Value& out) {
    if (given) out = *given;
  }

  void ApplyRendezvousConf() {
    const RendezvousConf& conf = choices_.conf;
    Take(conf.timeout, spec_.join_timeout);
    Take(conf.join_timeout, spec_.join_timeout);
    Take(conf.last_call_timeout, spec_.last_call_timeout);
    Take(conf.close_timeout, spec_.close_timeout);
    Take(conf.read_timeout, spec_.read_timeout);
    Take(conf.orphan_timeout, spec_.orphan_timeout);
    Take(conf.lease, spec_.lease.duration);
    Take(conf.renew_interval, spec_.lease.renew_interval);
    spec_.is_host = conf.is_host;
    if (conf.rank && !spec_.node_rank) spec_.node_rank = conf.rank;
    for (const std::string& warning : conf.warnings) Warn(warning);
  }

  // torchrun's launchers give every node of a cluster its rank, also to a job on one of them.
  void WarnOfNodeRank() {
    if (!spec_.is_single_node() || spec_.node_rank.value_or(0) <= 0) return;
    const Given* given = line_.Find("node_rank");
    Warn(absl::StrCat(given == nullptr ? "--rdzv_conf rank" : given->source, "=", *spec_.node_rank,
                      " has no effect on a job of one node; several need --nnodes"));
    spec_.node_rank = 0;
  }

  void ChooseRunId() {
    const bool is_alone = spec_.is_single_node() && IsStatic() && !choices_.endpoint &&
                          !choices_.master_port && line_.Find("rdzv_id") == nullptr;
    if ((is_alone || line_.IsOn("standalone")) && !fresh_run_id_.empty()) {
      spec_.run_id = fresh_run_id_;
    }
  }

  void PlaceEndpoint() {
    if (choices_.endpoint && choices_.endpoint->port == kNoPort) {
      choices_.endpoint->port = IsStatic() ? choices_.master_port.value_or(kDefaultRendezvousPort)
                                           : kDefaultRendezvousPort;
    }
    spec_.is_single_node() ? PlaceOneNode() : PlaceSeveralNodes();
  }

  // One node: an endpoint only where a rendezvous at a certain place was asked for.
  void PlaceOneNode() {
    spec_.worker_master_addr = choices_.master_addr;
    spec_.worker_master_port = choices_.master_port.value_or(0);
    const std::optional<Endpoint>& endpoint = choices_.endpoint;
    if (!endpoint) return;
    if (IsStatic()) {
      spec_.worker_master_addr = endpoint->host;
      spec_.worker_master_port = endpoint->port;
    } else if (endpoint->port != 0) {
      spec_.endpoint = *endpoint;
    }
  }

  void PlaceSeveralNodes() {
    const std::string& master = choices_.master_addr;
    if (!choices_.endpoint) {
      if (master.empty()) return;  // Validate refuses it
      const int default_port = IsStatic() ? kDefaultStaticPort : kDefaultRendezvousPort;
      spec_.endpoint = {.host = master, .port = choices_.master_port.value_or(default_port)};
      return;
    }
    spec_.endpoint = *choices_.endpoint;
    if (!master.empty() && master != spec_.endpoint.host) {
      Warn(absl::StrCat("--master_addr=", master, " is ignored: the nodes meet at --rdzv_endpoint=",
                        ToString(spec_.endpoint)));
    }
  }

  // torchrun's static back end waits for MAX nodes, and its node rank is 0 unless given.
  void ApplyStatic() {
    if (!IsStatic()) return;
    if (!spec_.node_rank) spec_.node_rank = 0;
    if (spec_.min_nodes == spec_.max_nodes) return;
    Warn(absl::StrCat("--nnodes=", spec_.min_nodes, ":", spec_.max_nodes,
                      ": the static back end waits for all ", spec_.max_nodes,
                      " nodes; for an elastic job add --rdzv_backend=c10d"));
    spec_.min_nodes = spec_.max_nodes;
  }

  absl::Status TakeProgram() {
    Program& program = spec_.program;
    program.run_path = line_.IsOn("run_path");
    if (!program.run_path) {
      if (line_.IsOn("no_python") && line_.IsOn("module")) {
        return absl::InvalidArgumentError(
            "--no_python and --module cannot both be given: a module is run by Python");
      }
      if (line_.IsOn("no_python")) program.kind = Program::Kind::kNoPython;
      if (line_.IsOn("module")) program.kind = Program::Kind::kModule;
    }
    if (line_.script.empty() || line_.script.front().empty()) {
      return absl::InvalidArgumentError(
          "no script was given; usage: muster run [options] SCRIPT [arguments of the script]");
    }
    program.name = line_.script.front();
    program.args.assign(line_.script.begin() + 1, line_.script.end());
    return absl::OkStatus();
  }

  CommandLine& line_;
  RunChoices& choices_;
  JobSpec& spec_;
  const std::string fresh_run_id_;
};

absl::StatusOr<std::string> TextOfFile(const Given& given, const MachineView& machine) {
  absl::StatusOr<std::string> text = machine.read(given.text());
  if (!text.ok()) return command_line::At(given.source, given.text(), text.status());
  return text;
}

// What was given wins, as it does for accelerate.
void TakeFromConfig(const LaunchConfig& config, CommandLine& line) {
  for (const TakenOption& taken : config.options) {
    if (line.Find(taken.option) != nullptr) continue;
    line.values[taken.option] = Given{.texts = {taken.value}, .source = taken.source};
  }
}

absl::StatusOr<LaunchConfig> TakeAccelerateFile(const Given& given, const MachineView& machine,
                                                const EnvironmentMap& environment,
                                                CommandLine& line) {
  const std::string source = command_line::InWords(given.source, given.text());
  MUSTER_ASSIGN_OR_RETURN(const std::string text, TextOfFile(given, machine));
  MUSTER_ASSIGN_OR_RETURN(ConfigFile file, ReadAccelerateFile(text, source));
  MUSTER_ASSIGN_OR_RETURN(
      LaunchConfig config,
      LaunchOfAccelerate(std::move(file), {.inherited = environment,
                                           .directory = machine.directory,
                                           .num_cores = machine.count_cores()}));
  TakeFromConfig(config, line);
  if (line.Find("nproc_per_node") != nullptr || line.Find("hostfile") != nullptr) return config;
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": num_processes is missing: give it there, or --nproc_per_node"));
}

absl::StatusOr<LaunchConfig> TakeInstructLabFile(const Given& given, const MachineView& machine,
                                                 CommandLine& line) {
  const std::string path = given.text();
  if (line.Find("config_file") != nullptr) {
    return command_line::At(given.source, path,
                            absl::InvalidArgumentError("cannot be given beside --config_file"));
  }
  MUSTER_ASSIGN_OR_RETURN(const std::string text, TextOfFile(given, machine));
  MUSTER_ASSIGN_OR_RETURN(LaunchConfig config,
                          LaunchOfInstructLab(text, command_line::InWords(given.source, path)));
  if (line.script.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ilab=", path,
        ": InstructLab's file says how many workers to start and how to train, but no script was "
        "given, and InstructLab's own training program is not part of muster; name yours: muster "
        "run --ilab=",
        path, " SCRIPT [arguments of the script]"));
  }
  TakeFromConfig(config, line);
  return config;
}

// What the launchers that have other options, or files, would have made of the line.
absl::StatusOr<LaunchConfig> TakeFromOtherLaunchers(const EnvironmentMap& environment,
                                                    const MachineView& machine, CommandLine& line) {
  const auto read = [&](const std::string& path) { return machine.read(path).value_or(""); };
  const std::string variables =
      HasDeepSpeedOption(line) ? FindDeepSpeedVariables(environment, read) : "";
  MUSTER_ASSIGN_OR_RETURN(
      const LaunchConfig one_host,
      PlanOneHost(line, {.count = machine.count_gpus, .visible = machine.visible_gpus}, variables));
  TakeFromConfig(one_host, line);
  LaunchConfig config;
  if (const Given* file = line.Find("ilab")) {
    MUSTER_ASSIGN_OR_RETURN(config, TakeInstructLabFile(*file, machine, line));
  } else if (const Given* other = line.Find("config_file")) {
    MUSTER_ASSIGN_OR_RETURN(config, TakeAccelerateFile(*other, machine, environment, line));
  }
  for (const auto& [name, value] : one_host.environment) config.environment[name] = value;
  config.notes.insert(config.notes.end(), one_host.notes.begin(), one_host.notes.end());
  return config;
}

// A host file that was not named is where DeepSpeed looks for it.
void FindUsualHostFile(const MachineView& machine, CommandLine& line) {
  if (line.Find("hostfile") != nullptr || !HasDeepSpeedOption(line)) return;
  if (!machine.read(kUsualHostFile).ok()) return;
  line.values["hostfile"] = Given{.texts = {kUsualHostFile}, .source = "DeepSpeed's usual place"};
}

// The job of a configuration file that names hosts.
absl::StatusOr<HostJob> MakeHostJobOf(LaunchConfig config, const command_line::Grammar& grammar,
                                      CommandLine& line) {
  line.values.erase("config_file");  // all of it is in the line now
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_ASSIGN_OR_RETURN(HostJob job, MakeHostJob(grammar, line));
  job.config = std::move(config);
  return job;
}

// Needed before values are read, of which it decides some.
bool ReadsScheduler(const CommandLine& line) {
  const Given* given = line.Find("scheduler");
  return given == nullptr || given->text() != "none";
}

}  // namespace

absl::StatusOr<std::variant<RunFlags, PrintAndExit, HostJob>> ParseFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& fresh_run_id, const absl::StatusOr<SchedulerFindings>& scheduler,
    const MachineView& machine) {
  RunChoices choices;
  const command_line::Grammar grammar = RunGrammar(choices);
  MUSTER_ASSIGN_OR_RETURN(CommandLine line, command_line::Split(grammar, args, environment));
  if (!line.print.empty()) return PrintAndExit{std::move(line.print)};
  FindUsualHostFile(machine, line);
  if (line.Find("hostfile") != nullptr) {
    MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
    return MakeHostJob(grammar, line);
  }
  const bool as_deepspeed = HasDeepSpeedOption(line);
  Assembly assembly(line, choices, fresh_run_id);
  assembly.ApplyStandalone();
  MUSTER_ASSIGN_OR_RETURN(LaunchConfig config, TakeFromOtherLaunchers(environment, machine, line));
  if (line.Find("hostfile") != nullptr) return MakeHostJobOf(std::move(config), grammar, line);
  Placement placement;
  if (ReadsScheduler(line)) {
    MUSTER_RETURN_IF_ERROR(scheduler.status());
    MUSTER_ASSIGN_OR_RETURN(placement, ApplyScheduler(*scheduler, line));
  }
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_RETURN_IF_ERROR(assembly.Finish());
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, choices.spec.Validate()));
  if (as_deepspeed) {
    config.environment.merge(ToldOfNodes(choices.spec));
    if (!line.IsOn("no_local_rank")) {
      std::vector<std::string>& args = choices.spec.program.args;
      args.insert(args.begin(), kLocalRankArgument);
    }
  }
  return RunFlags{.spec = std::move(choices.spec),
                  .output = std::move(choices.output),
                  .placement = std::move(placement),
                  .environment = std::move(config.environment),
                  .warnings = std::move(line.warnings),
                  .notes = std::move(config.notes)};
}

}  // namespace muster::launcher
