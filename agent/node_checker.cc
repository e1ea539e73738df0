#include "agent/node_checker.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/buffer.hpp"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

// More than a pipe holds, unless root has made it larger.
constexpr int kReadsAtEnd = 16;

bool HasOutput(int pipe) {
  int bytes = 0;
  return ioctl(pipe, FIONREAD, &bytes) == 0 && bytes > 0;
}

}  // namespace

NodeChecker::NodeChecker(asio::io_context& loop, GuardianClient& guardian)
    : loop_(loop),
      guardian_(guardian),
      program_(loop, guardian, {.name = "the node check", .option = "--node_check"}) {}

void NodeChecker::Start(ProgramRun run, absl::AnyInvocable<void(CheckEnded)> then) {
  then_ = std::move(then);
  last_line_ = {};
  cannot_start_ = false;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    Finish(absl::ResourceExhaustedError(
        absl::StrCat("--node_check: cannot make a pipe: ", std::strerror(errno))));
    return;
  }
  run.output = UniqueFd(ends[1]);
  output_.emplace(loop_, ends[0]);
  output_->non_blocking(true);
  failed_id_ = run.id;
  Read();
  program_.Start(std::move(run), [this](const absl::Status& ended) { Finish(ended); });
}

void NodeChecker::Cancel() {
  if (!then_) return;
  then_ = nullptr;
  output_.reset();
  program_.Cancel();
}

bool NodeChecker::OnSpawnFailed(uint64_t id, const absl::Status& status) {
  cannot_start_ = absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
                  absl::IsInvalidArgument(status);
  return program_.OnSpawnFailed(id, status);
}

bool NodeChecker::OnExited(const WorkerExit& exit) {
  if (exit.worker_id == 0 || exit.worker_id != failed_id_) return false;
  failed_id_ = 0;
  const bool has_failed = exit.exit_code != 0 || exit.signal != 0;
  // What it has started is below the guardian now, and in no worker's tree.
  if (has_failed) guardian_.Sweep(SIGKILL);
  program_.OnExited(exit);
  return true;
}

// Waits and then reads, so that no bytes are on their way through the loop when the end of the
// program is heard of first.
void NodeChecker::Read() {
  output_->async_wait(asio::posix::stream_descriptor::wait_read,
                      [this](const asio::error_code& error) {
                        if (!error && output_ && TakeSome()) Read();
                      });
}

bool NodeChecker::TakeSome() {
  asio::error_code error;
  const size_t n = output_->read_some(asio::buffer(buffer_), error);
  last_line_.Take({buffer_.data(), n});
  return !error || error == asio::error::would_block;
}

void NodeChecker::Drain() {
  for (int i = 0; i < kReadsAtEnd && HasOutput(output_->native_handle()); ++i) TakeSome();
}

void NodeChecker::Finish(const absl::Status& ended) {
  if (output_) Drain();
  output_.reset();
  CheckEnded event;
  if (!ended.ok()) {
    const std::string said = last_line_.Text();
    event.failure = absl::StrCat(ended.message(), said.empty() ? "" : ": ", said);
    event.cannot_start = cannot_start_;
  }
  std::exchange(then_, nullptr)(std::move(event));
}

}  // namespace muster::agent
