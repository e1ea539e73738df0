#include "agent/guardian/guardian_wire.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/agent.pb.h"

namespace muster::agent::wire {
namespace {

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a message between agent and guardian: ", what));
}

constexpr int64_t kNever = -1;

absl::Duration ReadGroupAfter(int64_t milliseconds) {
  return milliseconds == kNever ? absl::InfiniteDuration() : absl::Milliseconds(milliseconds);
}

void Write(const WorkerCommand& command, proto::GuardianRequest& out) {
  auto& spawn = *out.mutable_spawn();
  spawn.set_worker_id(command.worker_id);
  for (const std::string& arg : command.argv) spawn.add_argv(arg);
  for (const std::string& variable : command.environment) spawn.add_environment(variable);
  spawn.set_working_directory(command.working_directory);
  spawn.set_has_stdin(command.stdin_fd >= 0);
  spawn.set_has_stdout(command.stdout_fd >= 0);
  spawn.set_has_stderr(command.stderr_fd >= 0);
  for (int cpu : command.cpus) spawn.add_cpus(cpu);
  spawn.set_start(static_cast<int>(command.start));
}

void Write(const SignalGroup& request, proto::GuardianRequest& out) {
  out.mutable_signal_group()->set_worker_id(request.worker_id);
  out.mutable_signal_group()->set_signal(request.signal);
  const bool is_ever = request.group_after != absl::InfiniteDuration();
  out.mutable_signal_group()->set_group_after_ms(
      is_ever ? absl::ToInt64Milliseconds(request.group_after) : kNever);
}

void Write(const Sweep& request, proto::GuardianRequest& out) {
  out.mutable_sweep()->set_signal(request.signal);
}

void Write(const RemoveAtEnd& request, proto::GuardianRequest& out) {
  out.mutable_remove_at_end()->set_path(request.path);
}

void Write(const LeaveNotice& request, proto::GuardianRequest& out) {
  out.mutable_leave_notice()->set_notice(request.notice);
}

void Write(const ListStrays&, proto::GuardianRequest& out) { out.mutable_list_strays(); }

void Write(const Spawned& reply, proto::GuardianReply& out) {
  auto& spawned = *out.mutable_spawned();
  spawned.set_worker_id(reply.worker_id);
  spawned.set_pid(reply.pid);
  spawned.set_is_forked(reply.is_forked);
}

void Write(const SpawnFailed& reply, proto::GuardianReply& out) {
  auto& failed = *out.mutable_spawn_failed();
  failed.set_worker_id(reply.worker_id);
  failed.set_error_number(reply.error_number);
  failed.set_step(reply.step);
}

void Write(const WorkerExit& reply, proto::GuardianReply& out) {
  auto& exited = *out.mutable_exited();
  exited.set_worker_id(reply.worker_id);
  exited.set_exit_code(reply.exit_code);
  exited.set_signal(reply.signal);
  exited.set_has_core(reply.has_core);
}

void Write(const Empty&, proto::GuardianReply& out) { out.mutable_empty(); }

void Write(const WarmState& reply, proto::GuardianReply& out) {
  out.mutable_warm_state()->set_is_ready(reply.is_ready);
  out.mutable_warm_state()->set_text(reply.text);
}

void Write(const Strays& reply, proto::GuardianReply& out) {
  out.mutable_strays()->mutable_pids()->Assign(reply.pids.begin(), reply.pids.end());
}

absl::StatusOr<Request> ReadSpawn(const proto::GuardianRequest::Spawn& spawn, const Frame& frame) {
  WorkerCommand command;
  command.worker_id = spawn.worker_id();
  command.argv.assign(spawn.argv().begin(), spawn.argv().end());
  command.environment.assign(spawn.environment().begin(), spawn.environment().end());
  command.working_directory = spawn.working_directory();
  command.cpus.assign(spawn.cpus().begin(), spawn.cpus().end());
  const int start = spawn.start();
  if (start < 0 || start > static_cast<int>(WorkerStart::kWarm)) return Malformed("no such start");
  command.start = static_cast<WorkerStart>(start);
  if (frame.descriptors_lost) return command;
  size_t next = 0;
  const auto take = [&](bool present, int& fd) {
    if (present && next < frame.descriptors.size()) fd = frame.descriptors[next].get();
    next += present ? 1 : 0;
  };
  take(spawn.has_stdin(), command.stdin_fd);
  take(spawn.has_stdout(), command.stdout_fd);
  take(spawn.has_stderr(), command.stderr_fd);
  if (next != frame.descriptors.size()) return Malformed("wrong number of descriptors");
  return command;
}

}  // namespace

std::string Encode(const Request& request) {
  proto::GuardianRequest out;
  std::visit([&](const auto& r) { Write(r, out); }, request);
  return out.SerializeAsString();
}

absl::StatusOr<Request> DecodeRequest(const Frame& frame) {
  proto::GuardianRequest in;
  if (!in.ParseFromString(frame.body)) return Malformed("cannot be parsed");
  switch (in.request_case()) {
    case proto::GuardianRequest::kSpawn:
      return ReadSpawn(in.spawn(), frame);
    case proto::GuardianRequest::kSignalGroup:
      return SignalGroup{in.signal_group().worker_id(), in.signal_group().signal(),
                         ReadGroupAfter(in.signal_group().group_after_ms())};
    case proto::GuardianRequest::kSweep:
      return Sweep{in.sweep().signal()};
    case proto::GuardianRequest::kRemoveAtEnd:
      return RemoveAtEnd{in.remove_at_end().path()};
    case proto::GuardianRequest::kLeaveNotice:
      return LeaveNotice{in.leave_notice().notice()};
    case proto::GuardianRequest::kListStrays:
      return ListStrays{};
    case proto::GuardianRequest::REQUEST_NOT_SET:
      break;
  }
  return Malformed("no request in it");
}

std::string Encode(const Reply& reply) {
  proto::GuardianReply out;
  std::visit([&](const auto& r) { Write(r, out); }, reply);
  return out.SerializeAsString();
}

absl::StatusOr<Reply> DecodeReply(const std::string& body) {
  proto::GuardianReply in;
  if (!in.ParseFromString(body)) return Malformed("cannot be parsed");
  switch (in.reply_case()) {
    case proto::GuardianReply::kSpawned:
      return Spawned{in.spawned().worker_id(), in.spawned().pid(), in.spawned().is_forked()};
    case proto::GuardianReply::kSpawnFailed:
      return SpawnFailed{in.spawn_failed().worker_id(), in.spawn_failed().error_number(),
                         in.spawn_failed().step()};
    case proto::GuardianReply::kExited:
      return WorkerExit{in.exited().worker_id(), in.exited().exit_code(), in.exited().signal(),
                        in.exited().has_core()};
    case proto::GuardianReply::kEmpty:
      return Empty{};
    case proto::GuardianReply::kWarmState:
      return WarmState{in.warm_state().is_ready(), in.warm_state().text()};
    case proto::GuardianReply::kStrays:
      return Strays{{in.strays().pids().begin(), in.strays().pids().end()}};
    case proto::GuardianReply::REPLY_NOT_SET:
      break;
  }
  return Malformed("no reply in it");
}

}  // namespace muster::agent::wire
