#include "agent/workers/worker_exits.h"

#include <csignal>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/console/error_file.h"
#include "agent/machine/signal_death.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// What a failed worker's files may take to be read. Its failure must not be kept from the others
// for longer than that.
constexpr absl::Duration kLastWordsTime = absl::Seconds(2);

// A call stack ends with the exception's text as a rule; where it does not, the text comes first.
std::string JoinMessage(const ErrorRecord& record) {
  if (absl::StrContains(record.callstack, record.message)) return record.callstack;
  return record.callstack.empty() ? record.message
                                  : absl::StrCat(record.message, "\n", record.callstack);
}

// A program that prints into a file which cannot grow fails by its own means, and cannot say so.
std::string FullDisk(const std::string& directory, const std::string& why) {
  return absl::StrCat("its output goes to files in ", directory,
                      ", where nothing more can be "
                      "written: ",
                      why,
                      "; free some space there, or choose another place with "
                      "--log_dir");
}

}  // namespace

WorkerExits::WorkerExits(Parts parts)
    : parts_(std::move(parts)), oom_watch_(OomWatch::Open()), kernel_log_(KernelLog::Open()) {}

void WorkerExits::StartRound() {
  oom_watch_.Forget();
  kernel_log_.Forget();
  left_silently_.clear();
  ended_with_zero_.clear();
}

void WorkerExits::OnSpawnFailed(uint64_t worker_id, const absl::Status& status) {
  const std::optional<RunningWorker> worker = parts_.roster.Take(worker_id);
  if (!worker) return;
  WorkerFailure failure{.rank = worker->rank,
                        .local_rank = worker->local_rank,
                        .node_rank = parts_.roster.assignment().node_rank,
                        .node_name = parts_.options.node.name,
                        .exit_code = status.code() == absl::StatusCode::kNotFound ? 127 : 126,
                        .start_failed = true,
                        .message = std::string(status.message()),
                        .unix_millis = absl::ToUnixMillis(absl::Now())};
  parts_.on_exit({worker->round, worker->local_rank, std::move(failure), /*is_its_own=*/true});
}

void WorkerExits::OnExited(const WorkerExit& exit) {
  const std::optional<RunningWorker> taken = parts_.roster.Take(exit.worker_id);
  if (!taken) return;
  const RunningWorker& worker = *taken;
  const bool is_well = exit.exit_code == 0 && exit.signal == 0;
  parts_.hang_watch.OnEnded(worker.local_rank.value(), is_well);
  if (is_well) return OnSuccess(worker);
  // The watch is told before any of the others is signalled.
  if (exit.signal == SIGABRT && worker.signals.empty()) {
    parts_.hang_watch.OnAborted(worker.local_rank.value());
  }
  WorkerFailure failure{.exit_code = exit.exit_code, .signal = exit.signal};
  const bool was_ours = absl::c_linear_search(worker.signals, exit.signal);
  // A worker that dies otherwise may have lost a helper, such as one that loads data.
  if (worker.signals.empty() || (exit.signal == SIGKILL && !was_ours)) {
    failure.probably_out_of_memory = oom_watch_.HasNewKills();
  }
  if (exit.signal != 0) {
    failure.message = Explain({.pid = worker.pid,
                               .signal = exit.signal,
                               .has_core = exit.has_core,
                               .was_ours = was_ours,
                               .was_out_of_memory = failure.probably_out_of_memory,
                               .kernel_lines = kernel_log_.Lines(),
                               .core_pattern = ReadCorePattern()});
  }
  TellFailure(worker, std::move(failure));
}

void WorkerExits::OnSuccess(const RunningWorker& worker) {
  parts_.pump.DrainNow(worker.local_rank);
  ended_with_zero_.insert(worker.local_rank);
  WarnOfSilentEnd(worker.local_rank);
  auto tell = [this, round = worker.round, local_rank = worker.local_rank] {
    parts_.on_exit({round, local_rank, std::nullopt});
  };
  if (!worker.signals.empty() || !IsFollowed()) return tell();
  // Once its files have been written.
  parts_.pump.TakeLastWords(worker.local_rank, kLastWordsTime,
                            [this, tell](LastWords) { parts_.followers.AwaitLook(tell); });
}

void WorkerExits::OnGivenUp(uint64_t worker_id, const std::string& why) {
  std::optional<RunningWorker> worker = parts_.roster.Take(worker_id);
  if (!worker) return;
  worker->why_ended = why;
  TellFailure(*worker, {.signal = SIGKILL});
}

void WorkerExits::OnSilentLeave(LocalRank worker) {
  left_silently_.insert(worker);
  WarnOfSilentEnd(worker);
}

// The end of the process and that of its connection are heard of in either order.
void WorkerExits::WarnOfSilentEnd(LocalRank worker) {
  if (!left_silently_.contains(worker) || !ended_with_zero_.contains(worker)) return;
  log::Write(log::Level::kWarning, "exit_without_goodbye",
             absl::StrCat("rank ", parts_.roster.assignment().first_rank.value() + worker.value(),
                          " (local rank ", worker.value(),
                          ") exited with code 0 before its program had finished; the other ranks "
                          "may wait for it. A program in C++ finishes with Runtime::Finish, one in "
                          "Python once its exit handlers run, which os._exit leaves out"),
             {{"run", parts_.options.spec.run_id},
              {"round", ToString(parts_.roster.assignment().round)},
              {"node", parts_.options.node.name}});
}

void WorkerExits::TellFailure(const RunningWorker& worker, WorkerFailure failure) {
  failure.rank = worker.rank;
  failure.local_rank = worker.local_rank;
  failure.node_rank = parts_.roster.assignment().node_rank;
  failure.node_name = parts_.options.node.name;
  failure.pid = worker.pid;
  failure.unix_millis = absl::ToUnixMillis(absl::Now());
  // What we end ourselves, for the sake of another or of the job, has not failed.
  const bool is_its_own = worker.signals.empty() || !worker.why_ended.empty();
  auto finish = [this, is_its_own, failure = std::move(failure), seen = MonoNow(),
                 round = worker.round, error_file = worker.error_file,
                 directory = parts_.options.run_directory,
                 why = worker.why_ended](LastWords words) mutable {
    failure.last_output = std::move(words.output);
    if (words.error) {
      failure.error_file = error_file;
      failure.message = JoinMessage(*words.error);
      if (words.error->unix_millis) failure.unix_millis = *words.error->unix_millis;
    }
    if (!why.empty()) failure.message = why;
    if (is_its_own && !words.why_full.empty()) {
      absl::StrAppend(&failure.message, failure.message.empty() ? "" : "\n",
                      FullDisk(directory, words.why_full));
    }
    if (!words.files_answered) {
      log::Write(log::Level::kWarning, "log_files_hang",
                 absl::StrCat("cannot read what rank ", ToString(failure.rank), " wrote below ",
                              parts_.options.run_directory, ": its file system does not answer"));
    }
    auto tell = [this, is_its_own, round, seen, failure = std::move(failure)]() mutable {
      failure.age = MonoNow() - seen;
      const LocalRank local_rank = failure.local_rank;
      parts_.on_exit({round, local_rank, std::move(failure), is_its_own});
    };
    if (!is_its_own || !IsFollowed()) return tell();
    parts_.followers.AwaitLook(std::move(tell));
  };
  parts_.pump.TakeLastWords(worker.local_rank, kLastWordsTime, std::move(finish));
}

}  // namespace muster::agent
