// `muster run`: a node's part of a job.
#include "launcher/commands/commands.h"

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "agent/console/error_file.h"
#include "agent/console/log_routing.h"
#include "agent/guardian/guardian.h"
#include "launcher/line/flags.h"
#include "launcher/line/invocation.h"
#include "launcher/line/placement.h"
#include "launcher/node/exit_summary.h"
#include "launcher/node/log_setup.h"
#include "launcher/node/node_run.h"
#include "launcher/node/node_setup.h"
#include "launcher/schedulers/scheduler.h"
#include "launcher/schedulers/task_gate.h"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/base/field_error.h"
#include "proto/base/membership.h"
#include "proto/io/descriptors.h"
#include "proto/io/job_key.h"
#include "proto/io/log.h"

namespace muster::launcher {
namespace {

constexpr char kErrorFile[] = "TORCHELASTIC_ERROR_FILE";

// Says of an option that the user did not type where it came from.
absl::Status WithSource(const absl::Status& refusal, const Invocation& invocation) {
  const std::string field = FieldOf(refusal);
  const auto found = invocation.sources.find(std::string(absl::StripPrefix(field, "--")));
  if (found == invocation.sources.end()) return refusal;
  return absl::Status(refusal.code(),
                      absl::StrCat(refusal.message(), " (from ", found->second, ")"));
}

Invocation WithVariables(Invocation invocation, const EnvironmentMap& variables) {
  for (const auto& [name, value] : variables) invocation.environment[name] = value;
  return invocation;
}

// What the pipes and boards of so many workers certainly need; log files and connections come on
// top.
absl::Status CheckOpenFiles(int limit, int num_workers) {
  constexpr int kOwn = 24;
  constexpr int kOfWorker = 3;
  const int64_t needed = kOwn + int64_t{kOfWorker} * num_workers;
  if (needed <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(num_workers, num_workers == 1 ? " worker needs " : " workers need ", needed,
                   " open files in this process, which may have ", limit,
                   "; raise the hard limit (ulimit -Hn)"));
}

// Whether the console of this node has shown what the worker wrote to stderr.
bool WasShown(const WorkerFailure& failure, const LogSpec& logs) {
  const agent::StreamRoute route =
      agent::DecideRoutes(logs, agent::ConsoleStream::kStderr,
                          {{.local_rank = failure.local_rank, .rank = failure.rank}})
          .front();
  return route.to_console;
}

int Conclude(const JobOutcome& outcome, const SummaryOptions& options,
             const Invocation& invocation) {
  if (outcome.exit_code == 0) return 0;
  const std::string summary = TextFor(STDERR_FILENO, FormatExitSummary(outcome, options));
  std::fwrite(summary.data(), 1, summary.size(), stderr);
  return EndRun(outcome, invocation);
}

// Says what the scheduler and the flags have to say; of a job's nodes, the first one says it.
void TellStart(const RunFlags& flags) {
  const Placement& placement = flags.placement;
  const log::Level level = placement.is_first ? log::Level::kInfo : log::Level::kDebug;
  if (!placement.start_line.empty()) log::Write(level, "scheduler", placement.start_line);
  if (placement.end_time > 0) {
    log::Write(
        level, "time_limit",
        absl::StrCat("Slurm ends this job in ", TimeLeftInWords(placement.end_time, absl::Now()),
                     " (SLURM_JOB_END_TIME)"));
  }
  for (const std::string& warning : flags.warnings) {
    log::Write(log::Level::kWarning, "flags", warning);
  }
  for (const std::string& note : flags.notes) log::Write(level, "flags", note);
}

// The node's part of the job, from the guardian to the summary.
int RunNode(const RunFlags& flags, const Invocation& invocation) {
  // The guardian is forked before anything that may start a thread; it ends by itself when we do.
  absl::StatusOr<agent::GuardianHandle> guardian = agent::ForkGuardian();
  if (!guardian.ok()) return RefuseRun(guardian.status(), invocation);
  // The limit is raised behind the guardian, so that workers keep the limit that they were started
  // with.
  const int open_files = RaiseDescriptorLimit();
  const Invocation configured = WithVariables(invocation, flags.environment);
  absl::StatusOr<NodeSetup> setup = PrepareNode(flags.spec, flags.placement, configured);
  if (!setup.ok()) return RefuseRun(setup.status(), invocation);
  if (const absl::Status enough = CheckOpenFiles(open_files, setup->agent.node.local_world_size);
      !enough.ok()) {
    UndoNodeSetup(setup->agent);
    return RefuseRun(enough, invocation);
  }
  for (const std::string& note : setup->notes) log::Write(log::Level::kInfo, "setup", note);
  const agent::AgentOptions prepared = setup->agent;
  SummaryOptions summary{.program = flags.spec.program.name,
                         .this_node = prepared.node.name,
                         .python = setup->python,
                         .was_shown =
                             [&](const WorkerFailure& failure) {
                               return failure.node_name == prepared.node.name &&
                                      WasShown(failure, flags.spec.logs);
                             },
                         .shares_console = flags.placement.shares_console};
  const absl::StatusOr<JobOutcome> outcome = [&] {
    NodeRun run(*std::move(setup), invocation, flags);
    absl::StatusOr<JobOutcome> ended = run.Run(*std::move(guardian));
    if (ended.ok()) summary.network_faults = run.network_faults();
    return ended;
  }();
  if (!outcome.ok()) {
    UndoNodeSetup(prepared);
    return RefuseRun(outcome.status(), invocation);
  }
  return Conclude(*outcome, summary, invocation);
}

}  // namespace

int EndRun(const JobOutcome& outcome, const Invocation& invocation) {
  const std::string path = VariableOrEmpty(invocation.environment, kErrorFile);
  if (path.empty() || outcome.exit_code == 0) return outcome.exit_code;
  const absl::Status written = agent::WriteErrorFile(path, outcome, absl::Now());
  if (!written.ok()) log::Write(log::Level::kWarning, "error_file", written.message());
  return outcome.exit_code;
}

int RefuseRun(const absl::Status& status, const Invocation& invocation) {
  return EndRun({.exit_code = Refuse(status), .reason = std::string(status.message())}, invocation);
}

int RunCommand(const Invocation& invocation) {
  const absl::StatusOr<SchedulerFindings> scheduler = FindScheduler(SurroundingsOf(invocation));
  auto parsed = ParseFlags(invocation.args, invocation.environment,
                           absl::StrCat("local-", ToString(IncarnationOf(DrawLifeKey()))),
                           scheduler, ViewOfThisMachine(invocation));
  if (!parsed.ok()) {
    // One task of a node says it.
    if (scheduler.ok() && scheduler->tasks.local > 0) return ExitCodeOf(parsed.status());
    return RefuseRun(WithSource(parsed.status(), invocation), invocation);
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*parsed)) {
    return std::fputs(print->text.c_str(), stdout) < 0 ? 1 : 0;
  }
  if (const auto* job = std::get_if<HostJob>(&*parsed)) {
    for (const std::string& note : job->config.notes) log::Write(log::Level::kInfo, "flags", note);
    return HostsCommand(*job, WithVariables(invocation, job->config.environment));
  }
  const RunFlags& flags = std::get<RunFlags>(*parsed);
  ConfigureLog(flags.output);
  const Placement& placement = flags.placement;
  std::optional<TaskGate> gate;
  if (placement.tasks.num_local > 1) {
    const std::string tasks =
        placement.tasks_of.empty() ? absl::StrCat("of-", getppid()) : placement.tasks_of;
    if (placement.tasks.local > 0) return LieIdle(tasks);
    absl::StatusOr<TaskGate> opened = TaskGate::Open(tasks);
    if (!opened.ok()) return RefuseRun(opened.status(), invocation);
    gate.emplace(*std::move(opened));
    TakeAllCpus();
  }
  TellStart(flags);
  return RunNode(flags, invocation);
}

}  // namespace muster::launcher
