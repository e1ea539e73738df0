// `muster bench scaling`: runs a program at several numbers of ranks and prints the table.
#include "launcher/commands/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/machine/cpu_quota.h"
#include "agent/machine/gpu_inventory.h"
#include "launcher/bench/scaling.h"
#include "launcher/bench/scaling_options.h"
#include "launcher/commands/sight.h"
#include "launcher/sight/observer.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/status/figures.h"

namespace muster::launcher {
namespace {

constexpr char kProgram[] = "muster bench scaling";
constexpr char kSelf[] = "/proc/self/exe";
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
constexpr absl::Duration kLookPatience = absl::Seconds(5);  // for one look
// How long an agent that was asked to end is waited for; it gives its workers --shutdown_timeout,
// 30 s as a rule.
constexpr absl::Duration kEndPatience = absl::Minutes(2);
constexpr size_t kLastLines = 20;
constexpr off_t kLastBytes = 16384;

// `muster run` of one number of ranks. What it prints goes to a file without a name, whose end is
// shown if it fails.
class MeasuredRun {
 public:
  // Errors: those of the system: no file in TMPDIR, or no process.
  static absl::StatusOr<std::unique_ptr<MeasuredRun>> Start(
      int ranks, const std::vector<std::string>& run_line, const EnvironmentMap& environment) {
    std::unique_ptr<MeasuredRun> run(new MeasuredRun);
    run->job_ = absl::StrCat("scaling-", getpid(), "-", ranks);
    std::string folder = VariableOrEmpty(environment, "TMPDIR");
    if (folder.empty()) folder = "/tmp";
    run->output_ = UniqueFd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!run->output_) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("cannot keep the program's output in ", folder));
    }
    std::vector<std::string> words = {"muster", "run", absl::StrCat("--rdzv_id=", run->job_),
                                      absl::StrCat("--nproc_per_node=", ranks)};
    words.insert(words.end(), run_line.begin(), run_line.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const UniqueFd owned(nothing);
    run->pid_ = fork();
    if (run->pid_ < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
    if (run->pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(kExitFailure);
      dup2(nothing, STDIN_FILENO);
      dup2(run->output_.get(), STDOUT_FILENO);
      dup2(run->output_.get(), STDERR_FILENO);
      execv(kSelf, argv.data());
      _exit(kExitFailure);
    }
    return run;
  }
  ~MeasuredRun() {
    if (pid_ < 0 || HasEnded()) return;
    kill(pid_, SIGTERM);
    const MonoTime deadline = MonoNow() + kEndPatience;
    while (!HasEnded() && MonoNow() < deadline) absl::SleepFor(kLookEvery);
    // Its guardian ends what is left of the job then.
    if (!HasEnded()) kill(pid_, SIGKILL);
  }
  MeasuredRun(const MeasuredRun&) = delete;
  MeasuredRun& operator=(const MeasuredRun&) = delete;

  const std::string& job() const { return job_; }
  bool HasEnded() {
    if (!has_ended_ && waitpid(pid_, nullptr, WNOHANG) == pid_) has_ended_ = true;
    return has_ended_;
  }
  std::string LastWords() const {
    const off_t size = std::max<off_t>(0, lseek(output_.get(), 0, SEEK_END));
    std::string text(static_cast<size_t>(std::min(size, kLastBytes)), '\0');
    const ssize_t got =
        pread(output_.get(), text.data(), text.size(), size - static_cast<off_t>(text.size()));
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
    std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
    if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - kLastLines);
    std::string out;
    for (const std::string& line : lines) absl::StrAppend(&out, "  ", line, "\n");
    return out;
  }

 private:
  MeasuredRun() = default;

  std::string job_;
  UniqueFd output_;
  pid_t pid_ = -1;
  bool has_ended_ = false;
};

std::string Counted(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

// Nothing: nobody answers yet, or the round has not begun.
std::optional<std::vector<RankAt>> LookAt(const std::string& job, int ranks,
                                          std::unique_ptr<Observer>& observer,
                                          const Invocation& invocation) {
  if (observer == nullptr) {
    auto way = ReachJob({.job = job}, invocation);
    if (!way.ok()) return std::nullopt;
    observer = *std::move(way);
  }
  const absl::StatusOr<InquiryAnswer> answer =
      observer->Ask({.kind = InquiryKind::kFigures, .job = job}, kLookPatience);
  if (!answer.ok() || answer->parts.size() != 1) return std::nullopt;
  const auto figures = status::ParseFigures(answer->parts.front().body);
  if (!figures.ok() || static_cast<int>(figures->ranks.size()) != ranks) return std::nullopt;
  std::vector<RankAt> out;
  for (const status::RankFigures& rank : figures->ranks) {
    out.push_back({.step = rank.step,
                   .waited_seconds = rank.waited_seconds,
                   .cpus = rank.cpu_percent < 0 ? -1 : rank.cpu_percent / 100});
  }
  return out;
}

absl::StatusOr<ScalingRow> Measure(int ranks, const ScalingFlags& flags,
                                   const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredRun> run,
                          MeasuredRun::Start(ranks, flags.run_line, invocation.environment));
  std::unique_ptr<Observer> observer;
  ScalingMeter meter;
  const MonoTime began = MonoNow();
  while (absl::ToDoubleSeconds(flags.seconds) > meter.measured()) {
    if (run->HasEnded()) {
      // One that has done all its steps is measured by those.
      if (const std::optional<ScalingRow> row = meter.Row()) return *row;
      return absl::FailedPreconditionError(
          absl::StrCat("at ", Counted(ranks),
                       " the program ended before it could be measured: it "
                       "must do four steps and more. Its last lines:\n",
                       run->LastWords()));
    }
    if (MonoNow() - began > absl::Seconds(meter.changed_at()) + flags.timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("at ", Counted(ranks), " the program has ",
                       meter.has_steps() ? "begun no further step"
                                         : "told no step (deploy/docs/hangs.md: muster_marks)",
                       " within ", absl::FormatDuration(flags.timeout),
                       " (--timeout). Its last lines:\n", run->LastWords()));
    }
    absl::SleepFor(kLookEvery);
    const auto look = LookAt(run->job(), ranks, observer, invocation);
    if (look) meter.Look(absl::ToDoubleSeconds(MonoNow() - began), *look);
  }
  return *meter.Row();
}

absl::StatusOr<int> Bench(const ScalingFlags& flags, const Invocation& invocation) {
  const std::string* visible = FindVariable(invocation.environment, "CUDA_VISIBLE_DEVICES");
  const int gpus =
      agent::CountGpus(visible == nullptr ? std::nullopt : std::optional<std::string>(*visible));
  const ScalingView view{
      .global_batch = flags.global_batch, .cpus = agent::CountCpus(), .on_gpus = gpus > 0};
  const std::vector<int> all =
      flags.ranks.empty() ? UsualRanks(gpus > 0 ? gpus : view.cpus) : flags.ranks;
  std::vector<ScalingRow> rows;
  for (const int ranks : all) {
    std::fprintf(stderr, "%s: measuring %s\n", kProgram, Counted(ranks).c_str());
    MUSTER_ASSIGN_OR_RETURN(const ScalingRow row, Measure(ranks, flags, invocation));
    rows.push_back(row);
  }
  return PrintText(ScalingText(rows, view), 0);
}

}  // namespace

int BenchCommand(const Invocation& invocation) {
  return RunParsed<ScalingFlags>(
      kProgram, ParseScalingFlags(invocation.args, invocation.environment),
      [&](const ScalingFlags& flags) { return Bench(flags, invocation); });
}

}  // namespace muster::launcher
