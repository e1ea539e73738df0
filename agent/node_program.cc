#include "agent/node_program.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/process_end.h"

namespace muster::agent {

NodeProgram::NodeProgram(asio::io_context& loop, GuardianClient& guardian, Words words)
    : guardian_(guardian), words_(std::move(words)), timer_(loop) {}

void NodeProgram::Start(ProgramRun run, absl::AnyInvocable<void(absl::Status)> then) {
  id_ = run.id;
  program_ = run.argv.front();
  then_ = std::move(then);
  guardian_.Spawn({.worker_id = run.id,
                   .argv = std::move(run.argv),
                   .environment = std::move(run.environment),
                   .stdout_fd = run.output.get(),
                   .stderr_fd = run.output.get()});
  timer_.expires_after(absl::ToChronoNanoseconds(run.timeout));
  timer_.async_wait([this, id = id_, timeout = run.timeout](const asio::error_code& error) {
    if (error || id != id_) return;
    guardian_.SignalGroup(id, SIGKILL);
    Finish(absl::DeadlineExceededError(
        absl::StrCat(words_.name, " ", program_, " did not end within ",
                     absl::FormatDuration(timeout), " (", words_.option, "_timeout)")));
  });
}

void NodeProgram::Cancel() {
  if (id_ == 0) return;
  guardian_.SignalGroup(std::exchange(id_, 0), SIGKILL);
  timer_.cancel();
  then_ = nullptr;
}

bool NodeProgram::OnSpawnFailed(uint64_t id, const absl::Status& status) {
  if (id_ == 0 || id != id_) return false;
  Finish(absl::Status(status.code(), absl::StrCat(words_.option, ": ", status.message())));
  return true;
}

bool NodeProgram::OnExited(const WorkerExit& exit) {
  if (id_ == 0 || exit.worker_id != id_) return false;
  absl::Status status;
  if (exit.signal != 0 || exit.exit_code != 0) {
    status = absl::AbortedError(
        absl::StrCat(words_.name, " ", program_, " ",
                     HowItEnded({.exit_code = exit.exit_code, .signal = exit.signal})));
  }
  Finish(std::move(status));
  return true;
}

void NodeProgram::Finish(absl::Status status) {
  id_ = 0;
  timer_.cancel();
  std::exchange(then_, nullptr)(std::move(status));
}

}  // namespace muster::agent
