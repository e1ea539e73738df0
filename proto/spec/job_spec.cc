#include "proto/spec/job_spec.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr int kMaxNodes = 100000;
constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxSignal = 64;
const absl::Duration kLongest = absl::Hours(24 * 365);

// `flag` is an option's name; a part of its value ("rdzv_conf lease") may follow it.
template <typename Value>
absl::Status Bad(absl::string_view flag, const Value& value, absl::string_view why) {
  const absl::string_view option = flag.substr(0, flag.find(' '));
  return FieldError(absl::StrCat("--", option),
                    absl::StrCat(flag.substr(option.size()), "=", value, ": ", why));
}

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isprint(c); });
}

absl::Status CheckNames(const JobSpec& spec) {
  if (spec.run_id.empty()) return Bad("rdzv_id", "", "a job needs a name");
  if (spec.run_id.size() > kMaxNameBytes) {
    return Bad("rdzv_id", spec.run_id.substr(0, 32) + "...",
               absl::StrCat("is ", spec.run_id.size(), " bytes long; at most ", kMaxNameBytes));
  }
  if (!IsPrintable(spec.run_id) || spec.run_id.find('/') != std::string::npos) {
    return Bad("rdzv_id", absl::CHexEscape(spec.run_id),
               "expected printable ASCII without '/', since it names the log folder");
  }
  if (spec.role.size() > kMaxNameBytes ||
      std::any_of(spec.role.begin(), spec.role.end(), absl::ascii_iscntrl)) {
    return Bad(
        "role", absl::CHexEscape(spec.role.substr(0, kMaxNameBytes)),
        absl::StrCat("expected at most ", kMaxNameBytes, " bytes without control characters"));
  }
  return absl::OkStatus();
}

absl::Status CheckProcesses(const JobSpec& spec) {
  const ProcessesPerNode& nproc = spec.nproc_per_node;
  if (nproc.kind == ProcessesPerNode::Kind::kCount &&
      (nproc.count < 1 || nproc.count > kMaxProcessesPerNode)) {
    return Bad("nproc_per_node", nproc.count,
               absl::StrCat("expected 1 to ", kMaxProcessesPerNode, " workers on a node"));
  }
  if (nproc.kind == ProcessesPerNode::Kind::kGpuList) {
    if (nproc.gpus.empty()) return Bad("nproc_per_node", "gpu:", "names no GPU");
    std::vector<std::string> sorted = nproc.gpus;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return Bad("nproc_per_node", "gpu:...", absl::StrCat("GPU ", *twice, " is named twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const JobSpec& spec) {
  const std::string nnodes = spec.min_nodes == spec.max_nodes
                                 ? absl::StrCat(spec.max_nodes)
                                 : absl::StrCat(spec.min_nodes, ":", spec.max_nodes);
  if (spec.min_nodes < 1 || spec.max_nodes < spec.min_nodes) {
    return Bad("nnodes", nnodes, "expected N or MIN:MAX with 0 < MIN <= MAX");
  }
  if (spec.max_nodes > kMaxNodes) {
    return Bad("nnodes", nnodes, absl::StrCat("at most ", kMaxNodes, " nodes"));
  }
  if (spec.backend == RendezvousBackend::kStatic) {
    if (spec.min_nodes != spec.max_nodes) {
      return Bad("nnodes", nnodes, "a range needs --rdzv_backend=c10d; static has a fixed number");
    }
    if (spec.max_nodes > 1 && !spec.node_rank) {
      return Bad("rdzv_backend", "static", "each of several nodes needs its --node_rank");
    }
  }
  if (spec.node_rank && (*spec.node_rank < 0 || *spec.node_rank >= spec.max_nodes)) {
    return Bad("node_rank", *spec.node_rank,
               absl::StrCat("expected 0 to ", spec.max_nodes - 1, " with --nnodes=", nnodes));
  }
  return absl::OkStatus();
}

absl::Status CheckHost(absl::string_view flag, const std::string& host) {
  if (host.empty() || IsHost(host)) return absl::OkStatus();
  return Bad(flag, absl::CHexEscape(host), "is neither a host name nor an IP address");
}

absl::Status CheckPort(absl::string_view flag, int port) {
  if (port >= 0 && port <= kMaxPort) return absl::OkStatus();
  return Bad(flag, port, absl::StrCat("expected a port, 1 to ", kMaxPort));
}

absl::Status CheckMeetingPlace(const JobSpec& spec) {
  if (spec.backend == RendezvousBackend::kEtcd) {
    return Bad("rdzv_backend", "etcd", "not in this version; expected static, c10d or muster");
  }
  MUSTER_RETURN_IF_ERROR(CheckHost("rdzv_endpoint", spec.endpoint.host));
  MUSTER_RETURN_IF_ERROR(CheckPort("rdzv_endpoint", spec.endpoint.port));
  if (spec.is_single_node()) return absl::OkStatus();
  if (spec.endpoint.host.empty()) {
    return Bad(
        "nnodes", spec.max_nodes,
        "needs --rdzv_endpoint=HOST[:PORT] (or --master_addr) so that the nodes can find each "
        "other");
  }
  if (spec.endpoint.port == 0) {
    return Bad(
        "rdzv_endpoint", ToString(spec.endpoint),
        "several nodes cannot meet at port 0; name the port, or leave it out for the default");
  }
  return absl::OkStatus();
}

absl::Status CheckWorkerPorts(const JobSpec& spec) {
  MUSTER_RETURN_IF_ERROR(CheckHost("local_addr", spec.network.local_addr));
  MUSTER_RETURN_IF_ERROR(CheckHost("master_addr", spec.worker_master_addr));
  MUSTER_RETURN_IF_ERROR(CheckPort("master_port", spec.worker_master_port));
  const PortRange& ports = spec.worker_ports;
  if (ports == PortRange{}) return absl::OkStatus();
  const std::string range = absl::StrCat(ports.first, "-", ports.last);
  if (ports.first < 1 || ports.last > kMaxPort || ports.last < ports.first) {
    return Bad("worker_ports", range, absl::StrCat("expected A-B with 1 <= A <= B <= ", kMaxPort));
  }
  const int workers =
      spec.nproc_per_node.kind == ProcessesPerNode::Kind::kCount ? spec.nproc_per_node.count : 1;
  const int available = ports.last - ports.first + 1;
  if (available < workers + 1) {
    return Bad("worker_ports", range,
               absl::StrCat("has ", available, " ports; ", workers + 1,
                            " are needed, one per worker of a node and one for their store"));
  }
  return absl::OkStatus();
}

absl::Status CheckDuration(absl::string_view flag, absl::Duration value, bool zero_allowed) {
  if (value < absl::ZeroDuration() || (value == absl::ZeroDuration() && !zero_allowed)) {
    return Bad(flag, absl::FormatDuration(value),
               zero_allowed ? "must not be negative" : "must be longer than 0");
  }
  if (value > kLongest) {
    return Bad(flag, absl::FormatDuration(value), "expected a year at most");
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const JobSpec& spec) {
  constexpr bool kZeroAllowed = true;
  MUSTER_RETURN_IF_ERROR(CheckDuration("rdzv_conf join_timeout", spec.join_timeout, false));
  MUSTER_RETURN_IF_ERROR(
      CheckDuration("rdzv_conf last_call_timeout", spec.last_call_timeout, kZeroAllowed));
  MUSTER_RETURN_IF_ERROR(
      CheckDuration("rdzv_conf close_timeout", spec.close_timeout, kZeroAllowed));
  MUSTER_RETURN_IF_ERROR(CheckDuration("rdzv_conf read_timeout", spec.read_timeout, false));
  MUSTER_RETURN_IF_ERROR(CheckDuration("rdzv_conf orphan_timeout", spec.orphan_timeout, false));
  MUSTER_RETURN_IF_ERROR(CheckDuration("rdzv_conf lease", spec.lease.duration, false));
  MUSTER_RETURN_IF_ERROR(
      CheckDuration("rdzv_conf renew_interval", spec.lease.renew_interval, false));
  MUSTER_RETURN_IF_ERROR(CheckDuration("rdzv_conf lease margin", spec.lease.margin, kZeroAllowed));
  if (spec.lease.duration <= spec.lease.renew_interval + spec.lease.margin) {
    return Bad("rdzv_conf lease", absl::FormatDuration(spec.lease.duration),
               absl::StrCat("must be longer than renew_interval=",
                            absl::FormatDuration(spec.lease.renew_interval), " and the margin of ",
                            absl::FormatDuration(spec.lease.margin), " together"));
  }
  MUSTER_RETURN_IF_ERROR(CheckDuration("shutdown_timeout", spec.shutdown_timeout, kZeroAllowed));
  MUSTER_RETURN_IF_ERROR(CheckDuration("hang_timeout", spec.hang_timeout, false));
  const NodeProgramsSpec& programs = spec.node_programs;
  MUSTER_RETURN_IF_ERROR(CheckDuration("round_hook_timeout", programs.round_hook.timeout, false));
  MUSTER_RETURN_IF_ERROR(CheckDuration("node_check_timeout", programs.check.timeout, false));
  if (!(spec.monitor_interval_s > 0) || !std::isfinite(spec.monitor_interval_s)) {
    return Bad("monitor_interval", spec.monitor_interval_s, "expected seconds, more than 0");
  }
  return absl::OkStatus();
}

absl::Status CheckEndings(const JobSpec& spec) {
  if (spec.max_restarts < 0) {
    return Bad("max_restarts", spec.max_restarts, "expected 0 or more");
  }
  if (spec.left_exit_code < 0 || spec.left_exit_code > kMaxExitCode) {
    return Bad("left_exit_code", spec.left_exit_code,
               absl::StrCat("expected an exit code, 0 to ", kMaxExitCode));
  }
  for (const int signal : spec.signals_to_handle) {
    if (signal < 1 || signal > kMaxSignal || signal == SIGKILL || signal == SIGSTOP) {
      return Bad("signals_to_handle", signal, "cannot be handled by any process");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSelection(absl::string_view flag, const StreamSelection& selection) {
  for (const auto& [local_rank, streams] : selection.by_local_rank) {
    if (local_rank < 0 || local_rank >= kMaxProcessesPerNode) {
      return Bad(flag, absl::StrCat(local_rank, ":", static_cast<int>(streams)),
                 absl::StrCat("expected a local rank, 0 to ", kMaxProcessesPerNode - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogs(const LogSpec& logs) {
  MUSTER_RETURN_IF_ERROR(CheckSelection("redirects", logs.redirects));
  MUSTER_RETURN_IF_ERROR(CheckSelection("tee", logs.tee));
  for (const int local_rank : logs.local_ranks_filter) {
    if (local_rank < 0 || local_rank >= kMaxProcessesPerNode) {
      return Bad("local_ranks_filter", local_rank,
                 absl::StrCat("expected local ranks, 0 to ", kMaxProcessesPerNode - 1));
    }
  }
  const auto is_empty = [](const std::string& filter) { return filter.empty(); };
  for (const auto* filters : {&logs.duplicate_stdout_filters, &logs.duplicate_stderr_filters}) {
    if (std::any_of(filters->begin(), filters->end(), is_empty)) {
      return Bad(filters == &logs.duplicate_stdout_filters ? "duplicate_stdout_filters"
                                                           : "duplicate_stderr_filters",
                 "", "an empty filter would match every line");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(RendezvousBackend backend) {
  switch (backend) {
    case RendezvousBackend::kStatic:
      return "static";
    case RendezvousBackend::kC10d:
      return "c10d";
    case RendezvousBackend::kMuster:
      return "muster";
    case RendezvousBackend::kEtcd:
      return "etcd";
  }
  return "?";
}

StreamSet StreamSelection::For(int local_rank) const {
  const auto it = by_local_rank.find(local_rank);
  return it == by_local_rank.end() ? all : it->second;
}

bool StreamSelection::Any() const {
  return all != StreamSet::kNone ||
         std::any_of(by_local_rank.begin(), by_local_rank.end(),
                     [](const auto& entry) { return entry.second != StreamSet::kNone; });
}

absl::Status JobSpec::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckNames(*this));
  MUSTER_RETURN_IF_ERROR(CheckNodes(*this));
  MUSTER_RETURN_IF_ERROR(CheckProcesses(*this));
  MUSTER_RETURN_IF_ERROR(CheckMeetingPlace(*this));
  MUSTER_RETURN_IF_ERROR(CheckWorkerPorts(*this));
  MUSTER_RETURN_IF_ERROR(CheckTimes(*this));
  MUSTER_RETURN_IF_ERROR(CheckEndings(*this));
  if (program.name.empty()) return absl::InvalidArgumentError("no script was given");
  return CheckLogs(logs);
}

WatchMode EffectiveWatch(const JobSpec& spec) {
  if (spec.watch != WatchMode::kAuto) return spec.watch;
  return spec.max_restarts > 0 ? WatchMode::kRestart : WatchMode::kReport;
}

std::vector<int> HandledSignals(const JobSpec& spec) {
  if (!spec.signals_to_handle.empty()) return spec.signals_to_handle;
  return {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
}

RendezvousSettings MakeRendezvousSettings(const JobSpec& spec) {
  return {.min_nodes = spec.min_nodes,
          .max_nodes = spec.max_nodes,
          .max_restarts = spec.max_restarts,
          .is_static = spec.backend == RendezvousBackend::kStatic,
          .join_timeout = spec.join_timeout,
          .last_call_timeout = spec.last_call_timeout,
          .close_timeout = spec.close_timeout,
          .shutdown_timeout = spec.shutdown_timeout,
          .orphan_timeout = spec.orphan_timeout,
          .scale_up = spec.scale_up,
          .left_exit_code = spec.left_exit_code};
}

}  // namespace muster
