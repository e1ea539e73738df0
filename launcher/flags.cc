#include "launcher/flags.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/command_line.h"
#include "launcher/flag_values.h"
#include "launcher/rendezvous_conf.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

absl::Status Bad(const GivenValue& given, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(given.source, "=", given.text, ": ", why));
}

// Reads option `name` into `out`, if it was given.
template <typename Value, typename Out>
absl::Status Read(const CommandLine& line, absl::string_view name,
                  absl::StatusOr<Value> (*parse)(const std::string&), Out& out) {
  const GivenValue* given = line.Find(name);
  if (given == nullptr) return absl::OkStatus();
  absl::StatusOr<Value> value = parse(given->text);
  if (!value.ok()) return Bad(*given, value.status().message());
  out = *std::move(value);
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> ParseGrace(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(absl::Duration grace, ParseDuration(text));
  if (grace < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("expected 0 or more seconds");
  }
  return grace;
}

absl::Status ReadJob(const CommandLine& line, JobSpec& spec) {
  NodeCount nodes{.min = spec.min_nodes, .max = spec.max_nodes};
  MUSTER_RETURN_IF_ERROR(Read(line, "nnodes", ParseNodeCount, nodes));
  spec.min_nodes = nodes.min;
  spec.max_nodes = nodes.max;
  MUSTER_RETURN_IF_ERROR(Read(line, "nproc_per_node", ParseProcessesPerNode, spec.nproc_per_node));
  MUSTER_RETURN_IF_ERROR(Read(line, "role", ParseText, spec.role));
  return Read(line, "node_rank", ParseInteger, spec.node_rank);
}

template <typename Value>
void Take(const std::optional<Value>& given, Value& out) {
  if (given) out = *given;
}

absl::Status ReadRendezvousConf(const CommandLine& line, RunFlags& flags) {
  JobSpec& spec = flags.spec;
  RendezvousConf conf;
  MUSTER_RETURN_IF_ERROR(Read(line, "rdzv_conf", ParseRendezvousConf, conf));
  Take(conf.timeout, spec.join_timeout);
  Take(conf.join_timeout, spec.join_timeout);
  Take(conf.last_call_timeout, spec.last_call_timeout);
  Take(conf.close_timeout, spec.close_timeout);
  Take(conf.read_timeout, spec.read_timeout);
  Take(conf.orphan_timeout, spec.orphan_timeout);
  Take(conf.lease, spec.lease.duration);
  Take(conf.renew_interval, spec.lease.renew_interval);
  spec.is_host = conf.is_host;
  if (conf.rank && !spec.node_rank) spec.node_rank = conf.rank;
  for (const std::string& key : conf.without_effect) {
    flags.warnings.push_back(
        absl::StrCat("--rdzv_conf ", key,
                     " has no effect: leases find lost nodes (see lease and renew_interval)"));
  }
  return absl::OkStatus();
}

void ApplyStandalone(const CommandLine& line, const std::string& fresh_run_id, RunFlags& flags) {
  for (const char* name : {"rdzv_backend", "rdzv_endpoint", "rdzv_id"}) {
    if (const GivenValue* given = line.Find(name)) {
      flags.warnings.push_back(
          absl::StrCat(given->source, "=", given->text, " is ignored: --standalone chooses it"));
    }
  }
  flags.spec.backend = RendezvousBackend::kC10d;
  if (!fresh_run_id.empty()) flags.spec.run_id = fresh_run_id;
}

struct Master {
  std::string addr;
  std::optional<int> port;
};

// One node: an endpoint only where a rendezvous at a certain place was asked for.
absl::Status PlaceOneNode(const std::optional<Endpoint>& endpoint, const Master& master,
                          JobSpec& spec) {
  spec.worker_master_addr = master.addr;
  spec.worker_master_port = master.port.value_or(0);
  if (!endpoint) return absl::OkStatus();
  if (spec.backend == RendezvousBackend::kStatic) {
    spec.worker_master_addr = endpoint->host;
    spec.worker_master_port = endpoint->port;
  } else if (endpoint->port != 0) {
    spec.endpoint = *endpoint;
  }
  return absl::OkStatus();
}

absl::Status PlaceSeveralNodes(const std::optional<Endpoint>& endpoint, const Master& master,
                               int default_port, RunFlags& flags) {
  JobSpec& spec = flags.spec;
  if (!endpoint) {
    if (master.addr.empty()) return absl::OkStatus();  // Validate refuses it
    spec.endpoint = {.host = master.addr, .port = master.port.value_or(default_port)};
    return absl::OkStatus();
  }
  spec.endpoint = *endpoint;
  if (!master.addr.empty() && master.addr != endpoint->host) {
    flags.warnings.push_back(
        absl::StrCat("--master_addr=", master.addr,
                     " is ignored: the nodes meet at --rdzv_endpoint=", ToString(*endpoint)));
  }
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const CommandLine& line, RunFlags& flags) {
  JobSpec& spec = flags.spec;
  Master master;
  MUSTER_RETURN_IF_ERROR(Read(line, "master_port", ParseInteger, master.port));
  const GivenValue* addr = line.Find("master_addr");
  if (addr != nullptr && !addr->text.empty()) {
    MUSTER_RETURN_IF_ERROR(Read(line, "master_addr", ParseHost, master.addr));
  }
  const bool is_static = spec.backend == RendezvousBackend::kStatic;
  int default_port = is_static ? kDefaultStaticPort : kDefaultRendezvousPort;
  if (is_static && spec.is_single_node()) default_port = 0;
  if (is_static) default_port = master.port.value_or(default_port);

  std::optional<Endpoint> endpoint;
  const GivenValue* given = line.Find("rdzv_endpoint");
  if (given != nullptr && !given->text.empty() && !line.IsOn("standalone")) {
    const bool must_have_port = is_static && !spec.is_single_node() && !master.port;
    absl::StatusOr<Endpoint> parsed = ParseEndpoint(given->text, must_have_port ? 0 : default_port);
    if (!parsed.ok()) return Bad(*given, parsed.status().message());
    if (must_have_port && parsed->port == 0) {
      return Bad(*given,
                 absl::StrCat("has no port, and the static back end has no default for it: "
                              "add one (",
                              given->text, ":", kDefaultStaticPort, ") or give --master_port"));
    }
    endpoint = *parsed;
  }
  return spec.is_single_node() ? PlaceOneNode(endpoint, master, spec)
                               : PlaceSeveralNodes(endpoint, master, default_port, flags);
}

// torchrun's static back end waits for MAX nodes, and its node rank is 0 unless given.
void ApplyStatic(RunFlags& flags) {
  JobSpec& spec = flags.spec;
  if (spec.backend != RendezvousBackend::kStatic) return;
  if (!spec.node_rank) spec.node_rank = 0;
  if (spec.min_nodes == spec.max_nodes) return;
  flags.warnings.push_back(absl::StrCat("--nnodes=", spec.min_nodes, ":", spec.max_nodes,
                                        ": the static back end waits for all ", spec.max_nodes,
                                        " nodes; for an elastic job add --rdzv_backend=c10d"));
  spec.min_nodes = spec.max_nodes;
}

absl::StatusOr<std::string> ParseHostOrNone(const std::string& text) {
  return text.empty() ? text : ParseHost(text);
}

absl::Status ReadRendezvous(const CommandLine& line, const std::string& fresh_run_id,
                            RunFlags& flags) {
  JobSpec& spec = flags.spec;
  if (line.IsOn("standalone")) {
    if (spec.max_nodes > 1) {
      return Bad(*line.Find("nnodes"),
                 "--standalone is for a job on one node; leave one of them out");
    }
    ApplyStandalone(line, fresh_run_id, flags);
  } else {
    MUSTER_RETURN_IF_ERROR(Read(line, "rdzv_backend", ParseBackend, spec.backend));
    MUSTER_RETURN_IF_ERROR(Read(line, "rdzv_id", ParseText, spec.run_id));
  }
  MUSTER_RETURN_IF_ERROR(ReadRendezvousConf(line, flags));
  MUSTER_RETURN_IF_ERROR(ReadEndpoint(line, flags));
  ApplyStatic(flags);
  MUSTER_RETURN_IF_ERROR(Read(line, "local_addr", ParseHostOrNone, spec.local_addr));
  MUSTER_RETURN_IF_ERROR(Read(line, "worker_ports", ParsePortRange, spec.worker_ports));
  return Read(line, "tls", ParseBool, spec.tls);
}

absl::Status ReadEndings(const CommandLine& line, JobSpec& spec) {
  MUSTER_RETURN_IF_ERROR(Read(line, "max_restarts", ParseInteger, spec.max_restarts));
  MUSTER_RETURN_IF_ERROR(Read(line, "shutdown_timeout", ParseGrace, spec.shutdown_timeout));
  MUSTER_RETURN_IF_ERROR(Read(line, "signals_to_handle", ParseSignals, spec.signals_to_handle));
  return Read(line, "monitor_interval", ParseNumber, spec.monitor_interval_s);
}

absl::Status ReadProgram(const CommandLine& line, JobSpec& spec) {
  Program& program = spec.program;
  program.run_path = line.IsOn("run_path");
  if (!program.run_path) {
    if (line.IsOn("no_python") && line.IsOn("module")) {
      return absl::InvalidArgumentError(
          "--no_python and --module cannot both be given: a module is run by Python");
    }
    if (line.IsOn("no_python")) program.kind = Program::Kind::kNoPython;
    if (line.IsOn("module")) program.kind = Program::Kind::kModule;
  }
  if (line.program.empty() || line.program.front().empty()) {
    return absl::InvalidArgumentError(
        "no script was given; usage: muster run [options] SCRIPT [arguments of the script]");
  }
  program.name = line.program.front();
  program.args.assign(line.program.begin() + 1, line.program.end());
  spec.virtual_local_rank = line.IsOn("virtual_local_rank");
  return Read(line, "numa_binding", ParseNumaBinding, spec.numa_binding);
}

absl::Status ReadLogs(const CommandLine& line, LogSpec& logs) {
  MUSTER_RETURN_IF_ERROR(Read(line, "log_dir", ParseText, logs.log_dir));
  MUSTER_RETURN_IF_ERROR(Read(line, "redirects", ParseStreamSelection, logs.redirects));
  MUSTER_RETURN_IF_ERROR(Read(line, "tee", ParseStreamSelection, logs.tee));
  MUSTER_RETURN_IF_ERROR(
      Read(line, "local_ranks_filter", ParseLocalRanks, logs.local_ranks_filter));
  MUSTER_RETURN_IF_ERROR(
      Read(line, "duplicate_stdout_filters", ParseFilters, logs.duplicate_stdout_filters));
  MUSTER_RETURN_IF_ERROR(
      Read(line, "duplicate_stderr_filters", ParseFilters, logs.duplicate_stderr_filters));
  MUSTER_RETURN_IF_ERROR(
      Read(line, "log_line_prefix_template", ParseText, logs.line_prefix_template));
  MUSTER_RETURN_IF_ERROR(Read(line, "console", ParseConsoleMode, logs.console));
  logs.fold = line.IsOn("fold");
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseLogFormat(const std::string& text) {
  if (text == "text" || text == "json") return text;
  return absl::InvalidArgumentError("expected text or json");
}

absl::StatusOr<std::string> ParseLogLevel(const std::string& text) {
  for (const char* level : {"debug", "info", "warning", "error"}) {
    if (text == level) return text;
  }
  return absl::InvalidArgumentError("expected debug, info, warning or error");
}

absl::Status ReadOutput(const CommandLine& line, OutputFlags& output) {
  MUSTER_RETURN_IF_ERROR(Read(line, "log_format", ParseLogFormat, output.log_format));
  return Read(line, "log_level", ParseLogLevel, output.log_level);
}

// torchrun's options for what has no counterpart here: accepted at their default only.
absl::Status CheckFixedOptions(const CommandLine& line) {
  struct Fixed {
    const char* name;
    const char* value;
    const char* why;
  };
  constexpr std::array<Fixed, 3> kFixed = {{
      {"start_method", "spawn", "workers are programs, not Python functions"},
      {"event_log_handler", "null", "our own lines are the events; see --log_format=json"},
      {"logs_specs", "default", "Python plug-ins are not loaded"},
  }};
  for (const Fixed& fixed : kFixed) {
    const GivenValue* given = line.Find(fixed.name);
    if (given == nullptr || given->text == fixed.value) continue;
    return Bad(*given,
               absl::StrCat("only ", fixed.value, " (the default) is accepted: ", fixed.why));
  }
  return absl::OkStatus();
}

// Validate speaks of "--name=value: …"; a value out of the environment is named by its variable
// too.
absl::Status NameVariable(const absl::Status& status, const CommandLine& line) {
  const absl::string_view text = status.message();
  for (const auto& [name, given] : line.values) {
    const bool is_subject = absl::StartsWith(text, absl::StrCat("--", name, "=")) ||
                            absl::StartsWith(text, absl::StrCat("--", name, " "));
    if (is_subject && !absl::StartsWith(given.source, "--")) {
      return absl::InvalidArgumentError(absl::StrCat(text, " (from ", given.source, ")"));
    }
  }
  return status;
}

}  // namespace

absl::StatusOr<std::variant<RunFlags, PrintAndExit>> ParseFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& fresh_run_id) {
  MUSTER_ASSIGN_OR_RETURN(const CommandLine line, ReadCommandLine(args, environment));
  if (line.IsOn("help")) return PrintAndExit{HelpText()};
  if (line.IsOn("version")) return PrintAndExit{"muster " MUSTER_VERSION "\n"};
  RunFlags flags;
  MUSTER_RETURN_IF_ERROR(CheckFixedOptions(line));
  MUSTER_RETURN_IF_ERROR(ReadJob(line, flags.spec));
  MUSTER_RETURN_IF_ERROR(ReadRendezvous(line, fresh_run_id, flags));
  MUSTER_RETURN_IF_ERROR(ReadEndings(line, flags.spec));
  MUSTER_RETURN_IF_ERROR(ReadLogs(line, flags.spec.logs));
  MUSTER_RETURN_IF_ERROR(ReadOutput(line, flags.output));
  MUSTER_RETURN_IF_ERROR(ReadProgram(line, flags.spec));
  if (absl::Status status = flags.spec.Validate(); !status.ok()) return NameVariable(status, line);
  return flags;
}

}  // namespace muster::launcher
