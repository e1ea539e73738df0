#include "launcher/line/run_options.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/listen_address.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Into;
using command_line::Option;
using command_line::ParseBool;
using command_line::ParseChoice;
using command_line::ParseDuration;
using command_line::ParseInteger;
using command_line::ParseNumber;
using command_line::ParseText;
using Read = std::function<absl::Status(const std::string&)>;

constexpr char kRunUsage[] =
    "usage: muster run [options] SCRIPT [arguments of the script]\n"
    "\n"
    "Options are spelled with _ or -. Every option of torchrun can also be set as PET_<NAME>.\n";

std::string Default(absl::string_view what) { return absl::StrCat(" [", what, "]"); }
std::string Default(int number) { return Default(absl::StrCat(number)); }
std::string Default(absl::Duration time) { return Default(absl::FormatDuration(time)); }

absl::StatusOr<absl::Duration> ParseGrace(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(absl::Duration grace, ParseDuration(text));
  if (grace < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("expected 0 or more seconds");
  }
  return grace;
}

absl::StatusOr<Endpoint> ParseEndpointWithoutDefault(const std::string& text) {
  return ParseEndpoint(text, kNoPort);
}

absl::StatusOr<std::string> ParseHostOrNone(const std::string& text) {
  return text.empty() ? text : ParseHost(text);
}

absl::StatusOr<std::string> ParseLogFormat(const std::string& text) {
  return ParseChoice<std::string>(text, {{"text", "text"}, {"json", "json"}});
}

absl::StatusOr<std::string> ParseLogLevel(const std::string& text) {
  return ParseChoice<std::string>(
      text, {{"debug", text}, {"info", text}, {"warning", text}, {"error", text}});
}

// torchrun's options for what has no counterpart here: understood, so that job scripts run, and
// without effect.
Read Accepted(std::vector<std::string> values, std::string why) {
  return [values = std::move(values), why = std::move(why)](const std::string& text) {
    std::vector<std::pair<std::string, bool>> choices;
    choices.reserve(values.size());
    for (const std::string& value : values) choices.emplace_back(value, true);
    const absl::Status status = ParseChoice<bool>(text, choices).status();
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat(status.message(), "; ", why));
  };
}

// Kind and interface alone.
Read ReadNetworkUse(NetworkUse& to) {
  return [&to](const std::string& text) {
    MUSTER_ASSIGN_OR_RETURN(const NetworkUse read, ParseNetworkUse(text));
    to.kind = read.kind;
    to.interface = read.interface;
    return absl::OkStatus();
  };
}

// flags.cc asks whether a flag is on.
absl::Status Noted(const std::string&) { return absl::OkStatus(); }

// flags.cc asks whether it is none.
absl::Status ReadSchedulerChoice(const std::string& text) {
  return ParseChoice<bool>(text, {{"auto", true}, {"none", false}}).status();
}

std::string VariableOf(absl::string_view name) {
  return absl::StrCat("PET_", absl::AsciiStrToUpper(name));
}

std::vector<Option> JobOptions(RunChoices& to) {
  JobSpec& spec = to.spec;
  return {
      {.name = "nnodes",
       .value_name = "N|MIN:MAX",
       .help = "number of nodes; a range makes the job elastic" + Default(spec.max_nodes),
       .read = Into(ParseNodeCount, to.nodes)},
      {.name = "nproc_per_node",
       .value_name = "N|auto|cpu|gpu|gpu:1,3",
       .help = "workers on this node; auto: one per GPU, or per CPU without GPUs" +
               Default(spec.nproc_per_node.count),
       .read = Into(ParseProcessesPerNode, spec.nproc_per_node)},
      {.name = "standalone",
       .help = "run on this node alone, independent of any other job",
       .read = Noted},
      {.name = "role",
       .value_name = "NAME",
       .help = "name of the workers' role" + Default(spec.role),
       .read = Into(ParseText, spec.role)},
      {.name = "node_rank",
       .value_name = "N",
       .help = "rank of this node; the static back end requires it, others take it as a preference",
       .read = Into(ParseInteger, spec.node_rank)},
      {.name = "config_file",
       .value_name = "FILE",
       .help = "Hugging Face Accelerate file: take nodes, workers and variables from it, as "
               "`accelerate launch` does",
       .read = Noted},
      {.name = "ilab",
       .value_name = "FILE",
       .help = "InstructLab file: take nodes and workers from its section train; the script reads "
               "the rest",
       .read = Noted},
      {.name = "scheduler",
       .value_name = "auto|none",
       .help = "auto: take nodes, ranks and the meeting place from Slurm, mpirun, Kubernetes, "
               "SkyPilot, LSF or PBS, unless options here say otherwise [auto]",
       .read = ReadSchedulerChoice,
       .variables = {"MUSTER_SCHEDULER"}},
  };
}

// DeepSpeed's; hosts/host_plan.cc reads them where there is a host file, else hosts/one_host.cc.
std::vector<Option> HostOptions() {
  const Read number = [](const std::string& text) { return ParseInteger(text).status(); };
  return {
      {.name = "hostfile",
       .value_name = "FILE",
       .help = "start an agent over ssh on each host of FILE, which has lines HOST slots=N",
       .read = Noted,
       .short_name = 'H'},
      {.name = "include",
       .value_name = "HOST[:SLOT,..]@..",
       .help =
           "use only these hosts or slots of the file; without a file, these slots of localhost",
       .read = Noted,
       .short_name = 'i'},
      {.name = "exclude",
       .value_name = "HOST[:SLOT,..]@..",
       .help = "use all hosts and slots but these",
       .read = Noted,
       .short_name = 'e'},
      {.name = "num_nodes",
       .value_name = "N",
       .help = "use the first N hosts of the file",
       .read = number},
      {.name = "num_gpus",
       .value_name = "N",
       .help = "use the first N slots of each host; without a file, start N workers here, as "
               "deepspeed does",
       .read = number,
       .other_names = {"num_accelerators"}},
      {.name = "no_local_rank",
       .help = "do not pass --local_rank=N as the script's first argument",
       .read = Noted},
      {.name = "ssh_port",
       .value_name = "PORT",
       .help = "SSH port on the hosts [from ssh's configuration]",
       .read = number},
      {.name = "ssh_config",
       .value_name = "FILE",
       .help = "SSH configuration file [ssh's default]",
       .read = Noted},
  };
}

std::vector<Option> RendezvousOptions(RunChoices& to) {
  JobSpec& spec = to.spec;
  return {
      {.name = "rdzv_backend",
       .value_name = "NAME",
       .help = "static, c10d or muster" + Default(ToString(spec.backend)),
       .read = Into(ParseBackend, spec.backend)},
      {.name = "rdzv_endpoint",
       .value_name = "HOST[:PORT]",
       .help = absl::StrCat("where the nodes meet: one of the nodes, or musterd [port ",
                            kDefaultRendezvousPort, "]"),
       .read =
           [&to](const std::string& text) {
             return text.empty() ? absl::OkStatus()
                                 : Into(ParseEndpointWithoutDefault, to.endpoint)(text);
           }},
      {.name = "rdzv_id",
       .value_name = "ID",
       .help = absl::StrCat("job id [", spec.run_id, "; on one node a fresh one]"),
       .read = Into(ParseText, spec.run_id)},
      {.name = "rdzv_conf",
       .value_name = "K=V,...",
       .help = absl::StrCat("rendezvous settings: ", RendezvousConfKeys()),
       .read = Into(ParseRendezvousConf, to.conf)},
      {.name = "master_addr",
       .value_name = "HOST",
       .help = "host of the endpoint; with a single node, MASTER_ADDR of its workers",
       .read = Into(ParseHostOrNone, to.master_addr)},
      {.name = "master_port",
       .value_name = "PORT",
       .help = "port of the endpoint; with a single node, MASTER_PORT of its workers",
       .read = Into(ParseInteger, to.master_port)},
  };
}

std::vector<Option> NetworkOptions(JobSpec& spec) {
  return {
      {.name = "local_addr",
       .value_name = "HOST",
       .help = "address at which other nodes reach this one [chosen]",
       .read = Into(ParseHostOrNone, spec.network.local_addr)},
      {.name = "network",
       .value_name = "auto|IFACE|off|require",
       .help = "interface for workers' traffic, checked between the nodes before a round; "
               "require: nodes that fail the check never run together; off: no choice and no "
               "check [auto: the interface that leads to the master]",
       .read = ReadNetworkUse(spec.network)},
      {.name = "strict_nodes",
       .help = "refuse a job whose nodes differ in software, GPUs or script, instead of warning",
       .read = Into(ParseBool, spec.network.strict_nodes)},
      {.name = "worker_ports",
       .value_name = "A-B",
       .help = "port range for the workers, for firewalls [any]",
       .read = Into(ParsePortRange, spec.worker_ports)},
      {.name = "store_clients",
       .value_name = "all|nodes",
       .help = "who may use PyTorch's store: anyone who reaches its port, or only the job's nodes "
               "[all]",
       .read = Into(ParseStoreClients, spec.store_clients)},
      {.name = "tls",
       .value_name = "on|off",
       .help = "encrypt traffic between the nodes" + Default(spec.tls ? "on" : "off"),
       .read = Into(ParseBool, spec.tls)},
      {.name = "auth",
       .value_name = "secret|none",
       .help = "how nodes authenticate: with the user's secret, or not at all; none "
               "also disables encryption [secret]",
       .read = Into(command_line::ParseAuthentication, spec.authentication),
       .variables = {"MUSTER_AUTH"}},
  };
}

std::vector<Option> FailureOptions(RunChoices& to) {
  JobSpec& spec = to.spec;
  return {
      {.name = "max_restarts",
       .value_name = "N",
       .help = "restarts of the whole job after failures" + Default(spec.max_restarts),
       .read = Into(ParseInteger, spec.max_restarts)},
      {.name = "scale_up",
       .value_name = "now|checkpoint|never",
       .help = "when to restart a running round to admit a waiting node: after a short "
               "while, after the program's next committed checkpoint, or never [now]",
       .read = Into(ParseScaleUp, spec.scale_up)},
      {.name = "left_exit_code",
       .value_name = "CODE",
       .help = "exit code of a node that is drained or replaced" + Default(spec.left_exit_code),
       .read = Into(ParseInteger, spec.left_exit_code)},
      {.name = "shutdown_timeout",
       .value_name = "SECONDS",
       .help = "time between the first signal and SIGKILL" + Default(spec.shutdown_timeout),
       .read = Into(ParseGrace, spec.shutdown_timeout),
       .variables = {VariableOf("shutdown_timeout"), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}},
      {.name = "watch",
       .value_name = "auto|off|report|restart|replace",
       .help = "on a hang: report it, restart the workers, or replace the nodes at "
               "fault by spares [restart with --max_restarts, else report]",
       .read = Into(ParseWatchMode, spec.watch)},
      {.name = "hang_timeout",
       .value_name = "SECONDS",
       .help = "silence after which a step counts as hung" + Default(spec.hang_timeout),
       .read = Into(ParseGrace, spec.hang_timeout)},
      {.name = "signals_to_handle",
       .value_name = "SIG,...",
       .help = "signals that stop the job [SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
       .read = Into(ParseSignals, spec.signals_to_handle)},
      {.name = "monitor_interval",
       .value_name = "SECONDS",
       .help = "accepted for compatibility; a worker's end is seen at once",
       .read = Into(ParseNumber, spec.monitor_interval_s)},
  };
}

std::vector<Option> ScriptOptions() {
  return {
      {.name = "module", .help = "the script is a Python module", .read = Noted, .short_name = 'm'},
      {.name = "no_python", .help = "execute the script itself, found on PATH", .read = Noted},
      {.name = "run_path",
       .help = "run the script as a Python file; overrides --no_python",
       .read = Noted},
  };
}

std::vector<Option> NodeProgramOptions(NodeProgramsSpec& spec) {
  return {
      {.name = "node_check",
       .value_name = "PROGRAM",
       .help = "run PROGRAM on each node before it joins and after each failure of its workers; a "
               "node joins once it exits with 0, and is checked again after 10 s, 20 s, .. up to "
               "10 minutes until then. muster-doctor: `muster doctor` [none]",
       .read = Into(ParseText, spec.check.program)},
      {.name = "node_check_timeout",
       .value_name = "SECONDS",
       .help = "time limit of the node check, which then has failed" + Default(spec.check.timeout),
       .read = Into(ParseGrace, spec.check.timeout)},
      {.name = "round_hook",
       .value_name = "PROGRAM",
       .help =
           "run PROGRAM on each node before each round; workers start after it exits with 0 [none]",
       .read = Into(ParseText, spec.round_hook.program)},
      {.name = "round_hook_timeout",
       .value_name = "SECONDS",
       .help = "time limit of the round hook" + Default(spec.round_hook.timeout),
       .read = Into(ParseGrace, spec.round_hook.timeout)},
  };
}

std::vector<Option> WorkerOptions(JobSpec& spec) {
  return {
      {.name = "rank_variables",
       .value_name = "on|off",
       .help =
           "off: the worker of a job of one gets none of torchrun's variables (RANK, MASTER_ADDR, "
           "..), as from `accelerate launch`" +
           Default(spec.program.rank_variables ? "on" : "off"),
       .read = Into(ParseBool, spec.program.rank_variables)},
      {.name = "virtual_local_rank",
       .help = "show each worker LOCAL_RANK=0 and a single GPU",
       .read = Into(ParseBool, spec.virtual_local_rank)},
      {.name = "warm",
       .value_name = "auto|MODULE,...",
       .help = "Python modules that a process on this node imports during the first "
               "attempt, to fork the workers of later attempts; auto: those of torch, "
               "numpy, transformers and the like that the first attempt imported [none]",
       .read = Into(ParseModules, spec.program.warm)},
      {.name = "local_cache",
       .value_name = "DIR",
       .help = "keep what PyTorch, Triton and CUDA compile at run time in DIR, on this node's disk "
               "(TRITON_CACHE_DIR and the like, where unset) [none]",
       .read = Into(ParseText, spec.program.local_cache)},
      {.name = "numa_binding",
       .value_name = "NAME",
       .help = "bind workers to CPUs: node, socket, exclusive or core-complex [none]",
       .read = Into(ParseNumaBinding, spec.numa_binding)},
      {.name = "omp_threads",
       .value_name = "N|auto|none",
       .help = "each worker's OMP_NUM_THREADS: a number, auto (its share of the node's CPUs) or "
               "none (left as inherited) [inherited; otherwise 1 for each of several workers, "
               "under Slurm its share of --cpus-per-task]",
       .read = Into(ParseOmpThreads, spec.omp_threads)},
  };
}

std::vector<Option> OptionsWithoutEffect() {
  return {
      {.name = "start_method",
       .value_name = "NAME",
       .help =
           "accepted for compatibility (spawn, fork, forkserver); workers are separate programs",
       .read = Accepted({"spawn", "fork", "forkserver"},
                        "whichever it is, workers are programs, not Python functions")},
      {.name = "event_log_handler",
       .value_name = "NAME",
       .help = "accepted for compatibility (null, console); see --log_format=json for events",
       .read = Accepted({"null", "console", "dynamic_rendezvous"},
                        "Python plug-ins are not loaded; our own lines are the events, see "
                        "--log_format=json")},
      {.name = "logs_specs",
       .value_name = "NAME",
       .help = "accepted for compatibility (default)",
       .read = Accepted({"default"}, "Python plug-ins are not loaded")},
      {.name = "use_env", .help = "accepted for compatibility; always on", .read = Noted},
  };
}

std::vector<Option> WorkerLogOptions(LogSpec& logs) {
  return {
      {.name = "log_dir",
       .value_name = "DIR",
       .help = "folder for the workers' output [a fresh temporary one]",
       .read = Into(ParseText, logs.log_dir)},
      {.name = "redirects",
       .value_name = "0-3|RANK:0-3,...",
       .help = "write output to files only: 1 stdout, 2 stderr, 3 both [0]",
       .read = Into(ParseStreamSelection, logs.redirects),
       .short_name = 'r'},
      {.name = "tee",
       .value_name = "0-3|RANK:0-3,...",
       .help = "write output to files and to the console [0]",
       .read = Into(ParseStreamSelection, logs.tee),
       .short_name = 't'},
      {.name = "local_ranks_filter",
       .value_name = "RANK,...",
       .help = "show only these local ranks on the console [all]",
       .read = Into(ParseLocalRanks, logs.local_ranks_filter)},
      {.name = "duplicate_stdout_filters",
       .value_name = "TEXT,...",
       .help = "copy stdout lines that contain one of these texts to a file of their own",
       .read = Into(ParseFilters, logs.duplicate_stdout_filters)},
      {.name = "duplicate_stderr_filters",
       .value_name = "TEXT,...",
       .help = "copy stderr lines that contain one of these texts to a file of their own",
       .read = Into(ParseFilters, logs.duplicate_stderr_filters)},
      {.name = "log_line_prefix_template",
       .value_name = "TEXT",
       .help = "prefix of a line, from ${hostname} ${role_name} ${local_rank} ${rank} [--tee, "
               "--role: [${role_name}${local_rank}]:, else host and rank]",
       .read = Into(ParseText, logs.line_prefix_template),
       .variables = {VariableOf("log_line_prefix_template"),
                     "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"}},
  };
}

std::vector<Option> ConsoleOptions(LogSpec& logs) {
  return {
      {.name = "console",
       .value_name = "raw|prefix|rank0|none",
       .help = "workers' output as they write it, with host and rank, of rank 0 only, or none "
               "[raw; several workers on a terminal: prefix]",
       .read = Into(ParseConsoleMode, logs.console)},
      {.name = "fold",
       .help = "print identical lines of several ranks once, with a count",
       .read = Into(ParseBool, logs.fold)},
  };
}

std::vector<Option> OwnOutputOptions(OutputFlags& output) {
  return {
      {.name = "metrics",
       .value_name = "[ADDRESS:]PORT",
       .help = "serve figures of this node and its ranks to Prometheus, at /metrics of that "
               "port; only on this machine unless an address is given [none]",
       .read = Into(command_line::ParseListenAddress, output.metrics)},
      {.name = "log_format",
       .value_name = "text|json",
       .help = "format of Muster's own lines" + Default(output.log_format),
       .read = Into(ParseLogFormat, output.log_format)},
      {.name = "log_level",
       .value_name = "LEVEL",
       .help = "debug, info, warning or error" + Default(output.log_level),
       .read = Into(ParseLogLevel, output.log_level)},
  };
}

// Options that torchrun does not read from the environment, and those that are only ours.
bool HasNoVariable(const std::string& name) {
  for (const char* known :
       {"worker_ports", "store_clients", "tls",           "numa_binding", "logs_specs",
        "use_env",      "console",       "fold",          "log_format",   "log_level",
        "config_file",  "ilab",          "hostfile",      "include",      "exclude",
        "num_nodes",    "num_gpus",      "no_local_rank", "ssh_port",     "ssh_config",
        "omp_threads",  "network",       "strict_nodes",  "metrics",      "rank_variables",
        "local_cache"}) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace

command_line::Grammar RunGrammar(RunChoices& choices) {
  command_line::Grammar grammar{.program = "muster run",
                                .usage = kRunUsage,
                                .ends_at_script = true,
                                .also_called = {"torchrun"}};
  constexpr char kRendezvous[] = "Rendezvous";
  constexpr char kProgram[] = "Program";
  constexpr char kOutput[] = "Output";
  const std::pair<const char*, std::vector<Option>> groups[] = {
      {"Job", JobOptions(choices)},
      {"Hosts", HostOptions()},
      {kRendezvous, RendezvousOptions(choices)},
      {kRendezvous, NetworkOptions(choices.spec)},
      {"Failures and signals", FailureOptions(choices)},
      {kProgram, ScriptOptions()},
      {kProgram, NodeProgramOptions(choices.spec.node_programs)},
      {kProgram, WorkerOptions(choices.spec)},
      {kProgram, OptionsWithoutEffect()},
      {kOutput, WorkerLogOptions(choices.spec.logs)},
      {kOutput, ConsoleOptions(choices.spec.logs)},
      {kOutput, OwnOutputOptions(choices.output)},
  };
  for (const auto& [group, options] : groups) {
    for (Option option : options) {
      option.group = group;
      if (option.variables.empty() && !HasNoVariable(option.name)) {
        option.variables = {VariableOf(option.name)};
      }
      grammar.options.push_back(std::move(option));
    }
  }
  return grammar;
}

bool FindsTheJob(const std::string& option) {
  for (const char* name :
       {"rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "tls", "auth"}) {
    if (option == name) return true;
  }
  return false;
}

std::optional<Endpoint> EndpointOfJob(const RunChoices& choices) {
  std::optional<Endpoint> endpoint = choices.endpoint;
  if (!endpoint && !choices.master_addr.empty()) {
    endpoint = Endpoint{.host = choices.master_addr, .port = kNoPort};
  }
  if (endpoint && endpoint->port == kNoPort) {
    endpoint->port = choices.master_port.value_or(kDefaultRendezvousPort);
  }
  return endpoint;
}

}  // namespace muster::launcher
