// JobSpec <-> proto/job.proto; the declarations are in job_spec.h.
#include "proto/base/status_macros.h"
#include "proto/job.pb.h"
#include "proto/spec/job_spec.h"

namespace muster {
namespace {

template <typename Strings>
std::vector<std::string> ToVector(const Strings& strings) {
  return {strings.begin(), strings.end()};
}

template <typename Values, typename Repeated>
void Append(const Values& values, Repeated* repeated) {
  for (const auto& value : values) *repeated->Add() = value;
}

void Encode(const StreamSelection& selection, proto::StreamSelection* out) {
  out->set_all(static_cast<proto::StreamSet>(selection.all));
  for (const auto& [local_rank, streams] : selection.by_local_rank) {
    auto* entry = out->add_by_local_rank();
    entry->set_local_rank(local_rank);
    entry->set_streams(static_cast<proto::StreamSet>(streams));
  }
}

void Encode(const LogSpec& logs, proto::LogSpec* out) {
  out->set_log_dir(logs.log_dir);
  Encode(logs.redirects, out->mutable_redirects());
  Encode(logs.tee, out->mutable_tee());
  Append(logs.local_ranks_filter, out->mutable_local_ranks_filter());
  Append(logs.duplicate_stdout_filters, out->mutable_duplicate_stdout_filters());
  Append(logs.duplicate_stderr_filters, out->mutable_duplicate_stderr_filters());
  out->set_console(static_cast<proto::LogSpec::Console>(logs.console));
  out->set_fold(logs.fold);
  out->set_line_prefix_template(logs.line_prefix_template);
}

void Encode(const Program& program, proto::Program* out) {
  out->set_kind(static_cast<proto::Program::Kind>(program.kind));
  out->set_name(program.name);
  Append(program.args, out->mutable_args());
  out->set_run_path(program.run_path);
}

void EncodeWho(const JobSpec& spec, proto::JobSpec* out) {
  out->set_run_id(spec.run_id);
  out->set_role(spec.role);
  out->set_min_nodes(spec.min_nodes);
  out->set_max_nodes(spec.max_nodes);
  out->mutable_nproc_per_node()->set_kind(
      static_cast<proto::ProcessesPerNode::Kind>(spec.nproc_per_node.kind));
  out->mutable_nproc_per_node()->set_count(spec.nproc_per_node.count);
  Append(spec.nproc_per_node.gpus, out->mutable_nproc_per_node()->mutable_gpus());
}

void EncodeMeetingPlace(const JobSpec& spec, proto::JobSpec* out) {
  out->set_backend(static_cast<proto::JobSpec::Backend>(spec.backend));
  out->mutable_endpoint()->set_host(spec.endpoint.host);
  out->mutable_endpoint()->set_port(spec.endpoint.port);
  if (spec.node_rank) out->set_node_rank(*spec.node_rank);
  out->set_local_addr(spec.local_addr);
  out->set_worker_master_port(spec.worker_master_port);
  out->set_worker_master_addr(spec.worker_master_addr);
  out->set_first_worker_port(spec.worker_ports.first);
  out->set_last_worker_port(spec.worker_ports.last);
  if (spec.is_host) out->set_is_host(*spec.is_host);
  out->set_tls(spec.tls);
}

void EncodeTimes(const JobSpec& spec, proto::JobSpec* out) {
  out->set_join_timeout_ns(absl::ToInt64Nanoseconds(spec.join_timeout));
  out->set_last_call_timeout_ns(absl::ToInt64Nanoseconds(spec.last_call_timeout));
  out->set_close_timeout_ns(absl::ToInt64Nanoseconds(spec.close_timeout));
  out->set_read_timeout_ns(absl::ToInt64Nanoseconds(spec.read_timeout));
  out->set_orphan_timeout_ns(absl::ToInt64Nanoseconds(spec.orphan_timeout));
  out->set_lease_ns(absl::ToInt64Nanoseconds(spec.lease.duration));
  out->set_renew_interval_ns(absl::ToInt64Nanoseconds(spec.lease.renew_interval));
  out->set_lease_margin_ns(absl::ToInt64Nanoseconds(spec.lease.margin));
  out->set_shutdown_timeout_ns(absl::ToInt64Nanoseconds(spec.shutdown_timeout));
}

// An enumerator that this version does not know stays out: the sender is newer.
absl::Status CheckEnums(const proto::JobSpec& in) {
  bool known = proto::JobSpec::Backend_IsValid(in.backend()) &&
               proto::JobSpec::NumaBinding_IsValid(in.numa_binding()) &&
               proto::Program::Kind_IsValid(in.program().kind()) &&
               proto::ProcessesPerNode::Kind_IsValid(in.nproc_per_node().kind()) &&
               proto::LogSpec::Console_IsValid(in.logs().console());
  for (const auto* selection : {&in.logs().redirects(), &in.logs().tee()}) {
    known = known && proto::StreamSet_IsValid(selection->all());
    for (const auto& entry : selection->by_local_rank()) {
      known = known && proto::StreamSet_IsValid(entry.streams());
    }
  }
  if (known) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the job specification uses a choice that this version does not know; use one version of "
      "muster on all nodes");
}

StreamSelection Decode(const proto::StreamSelection& in) {
  StreamSelection selection;
  selection.all = static_cast<StreamSet>(in.all());
  for (const auto& entry : in.by_local_rank()) {
    selection.by_local_rank[entry.local_rank()] = static_cast<StreamSet>(entry.streams());
  }
  return selection;
}

LogSpec Decode(const proto::LogSpec& in) {
  return {.log_dir = in.log_dir(),
          .redirects = Decode(in.redirects()),
          .tee = Decode(in.tee()),
          .local_ranks_filter = {in.local_ranks_filter().begin(), in.local_ranks_filter().end()},
          .duplicate_stdout_filters = ToVector(in.duplicate_stdout_filters()),
          .duplicate_stderr_filters = ToVector(in.duplicate_stderr_filters()),
          .console = static_cast<ConsoleMode>(in.console()),
          .fold = in.fold(),
          .line_prefix_template = in.line_prefix_template()};
}

void DecodeWho(const proto::JobSpec& in, JobSpec& spec) {
  spec.run_id = in.run_id();
  spec.role = in.role();
  spec.min_nodes = in.min_nodes();
  spec.max_nodes = in.max_nodes();
  spec.nproc_per_node.kind = static_cast<ProcessesPerNode::Kind>(in.nproc_per_node().kind());
  spec.nproc_per_node.count = in.nproc_per_node().count();
  spec.nproc_per_node.gpus = ToVector(in.nproc_per_node().gpus());
}

void DecodeMeetingPlace(const proto::JobSpec& in, JobSpec& spec) {
  spec.backend = static_cast<RendezvousBackend>(in.backend());
  spec.endpoint = {.host = in.endpoint().host(), .port = in.endpoint().port()};
  if (in.has_node_rank()) spec.node_rank = in.node_rank();
  spec.local_addr = in.local_addr();
  spec.worker_master_port = in.worker_master_port();
  spec.worker_master_addr = in.worker_master_addr();
  spec.worker_ports = {.first = in.first_worker_port(), .last = in.last_worker_port()};
  if (in.has_is_host()) spec.is_host = in.is_host();
  spec.tls = in.tls();
}

void DecodeTimes(const proto::JobSpec& in, JobSpec& spec) {
  spec.join_timeout = absl::Nanoseconds(in.join_timeout_ns());
  spec.last_call_timeout = absl::Nanoseconds(in.last_call_timeout_ns());
  spec.close_timeout = absl::Nanoseconds(in.close_timeout_ns());
  spec.read_timeout = absl::Nanoseconds(in.read_timeout_ns());
  spec.orphan_timeout = absl::Nanoseconds(in.orphan_timeout_ns());
  spec.lease.duration = absl::Nanoseconds(in.lease_ns());
  spec.lease.renew_interval = absl::Nanoseconds(in.renew_interval_ns());
  spec.lease.margin = absl::Nanoseconds(in.lease_margin_ns());
  spec.shutdown_timeout = absl::Nanoseconds(in.shutdown_timeout_ns());
}

}  // namespace

std::string EncodeJobSpec(const JobSpec& spec) {
  proto::JobSpec out;
  EncodeWho(spec, &out);
  EncodeMeetingPlace(spec, &out);
  EncodeTimes(spec, &out);
  out.set_max_restarts(spec.max_restarts);
  Append(spec.signals_to_handle, out.mutable_signals_to_handle());
  out.set_monitor_interval_s(spec.monitor_interval_s);
  Encode(spec.program, out.mutable_program());
  out.set_virtual_local_rank(spec.virtual_local_rank);
  out.set_numa_binding(static_cast<proto::JobSpec::NumaBinding>(spec.numa_binding));
  Encode(spec.logs, out.mutable_logs());
  return out.SerializeAsString();
}

absl::StatusOr<JobSpec> DecodeJobSpec(const std::string& bytes) {
  proto::JobSpec in;
  if (!in.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("these bytes are no job specification");
  }
  MUSTER_RETURN_IF_ERROR(CheckEnums(in));
  JobSpec spec;
  DecodeWho(in, spec);
  DecodeMeetingPlace(in, spec);
  DecodeTimes(in, spec);
  spec.max_restarts = in.max_restarts();
  spec.signals_to_handle = {in.signals_to_handle().begin(), in.signals_to_handle().end()};
  spec.monitor_interval_s = in.monitor_interval_s();
  spec.program = {.kind = static_cast<Program::Kind>(in.program().kind()),
                  .name = in.program().name(),
                  .args = ToVector(in.program().args()),
                  .run_path = in.program().run_path()};
  spec.virtual_local_rank = in.virtual_local_rank();
  spec.numa_binding = static_cast<NumaBinding>(in.numa_binding());
  spec.logs = Decode(in.logs());
  MUSTER_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

}  // namespace muster
