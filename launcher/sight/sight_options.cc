#include "launcher/sight/sight_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/line/run_options.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Into;

constexpr char kStatusUsage[] =
    "usage: muster status [options] [JOB]\n"
    "\n"
    "Shows the health, round, nodes, steps, restarts and last incident of a job. Without JOB, if\n"
    "there are several jobs, prints a line for each.\n"
    "\n";
constexpr char kStatusFooter[] =
    "The exit code gives the job's health: 0 healthy, 10 waiting (for nodes, or ranks for a "
    "rank),\n"
    "11 hung, 12 failed, 13 ended; 1 no such job or no answer, 2 wrong command line, 3 secret\n"
    "refused. With several jobs it is that of the worst.\n";

constexpr char kStacksUsage[] =
    "usage: muster stacks [options] [JOB]\n"
    "\n"
    "Shows where the ranks of a job are: the Python and native stacks of their main threads.\n"
    "Groups ranks at the same place. Each process stops for the moment in which it is read.\n"
    "\n";
constexpr char kStacksFooter[] =
    "Processes whose stacks cannot be read (ptrace) are named with the reason.\n";

constexpr char kLogsUsage[] =
    "usage: muster logs [options] [JOB]\n"
    "\n"
    "Prints lines from the log files of the ranks of a job, on all nodes. The job must keep log\n"
    "files (--redirects or --tee, and --log_dir). Only the requested lines are sent.\n"
    "\n";
constexpr char kTopUsage[] =
    "usage: muster top [options] [JOB]\n"
    "\n"
    "Shows step, lag, phase, CPU use, memory and GPUs of the ranks of a job, on all nodes. "
    "Redraws\n"
    "every two seconds, or prints once if the output is not a terminal. Keys: q quits, s changes\n"
    "the order, f filters by part of a node's name or by rank.\n"
    "\n";

constexpr char kStopUsage[] =
    "usage: muster stop [options] [JOB]\n"
    "\n"
    "Ends a job with exit code 0. Ranks of programs that ask whether to stop leave after the same\n"
    "step; other programs are signalled after the job's --shutdown_timeout.\n"
    "\n";
constexpr char kDrainUsage[] =
    "usage: muster drain [options] NODE\n"
    "\n"
    "Takes a node out of a job: every rank leaves after the same step, and the next round begins\n"
    "without the node. NODE is its name, as in the job's output, or its address. --rdzv_id names\n"
    "the job; leave it out if there is only one. ";

struct CommandText {
  const char* name;
  const char* usage;
  const char* footer;
};

CommandText TextOf(SightKind kind) {
  switch (kind) {
    case SightKind::kStatus:
      return {"muster status", kStatusUsage, kStatusFooter};
    case SightKind::kStacks:
      return {"muster stacks", kStacksUsage, kStacksFooter};
    case SightKind::kLogs:
      return {"muster logs", kLogsUsage, ""};
    case SightKind::kTop:
      return {"muster top", kTopUsage, ""};
    case SightKind::kStop:
      return {"muster stop", kStopUsage, ""};
    case SightKind::kDrain:
      return {"muster drain", kDrainUsage, ""};
  }
  return {};
}

absl::StatusOr<int> ParseRank(const std::string& text) {
  const absl::StatusOr<int> rank = command_line::ParseInteger(text);
  if (!rank.ok() || *rank < 0) return absl::InvalidArgumentError("expected a rank: 0, 1, ...");
  return rank;
}

absl::StatusOr<int64_t> ParseLines(const std::string& text) {
  if (text == "all") return -1;
  const absl::StatusOr<int64_t> lines = command_line::ParseInt64(text);
  if (!lines.ok() || *lines < 0) return absl::InvalidArgumentError("expected a number, or all");
  return lines;
}

void AddLogOptions(LogFlags& logs, std::vector<command_line::Option>& options) {
  options.push_back({.name = "lines",
                     .value_name = "N",
                     .group = "What is printed",
                     .help = absl::StrCat("number of lines from the end of each log, or all [",
                                          logs.tail_lines, "]"),
                     .read = Into(ParseLines, logs.tail_lines),
                     .short_name = 'n'});
  options.push_back({.name = "follow",
                     .group = "What is printed",
                     .help = "keep printing new lines until the job ends",
                     .read = Into(command_line::ParseBool, logs.follow),
                     .short_name = 'f'});
  options.push_back({.name = "merge",
                     .group = "What is printed",
                     .help = "print identical lines of several ranks once",
                     .read = Into(command_line::ParseBool, logs.merge)});
  options.push_back({.name = "first_error",
                     .group = "What is printed",
                     .help =
                         "print only the error of the rank that failed first: its error file, or "
                         "the first line of its standard error that looks like an error",
                     .read = Into(command_line::ParseBool, logs.first_error)});
}

void AddStopOptions(StopRequest& request, std::vector<command_line::Option>& options) {
  options.push_back({.name = "reason",
                     .value_name = "TEXT",
                     .group = "The stop",
                     .help = "reason, printed on every node",
                     .read = Into(command_line::ParseText, request.reason)});
  options.push_back({.name = "now",
                     .group = "The stop",
                     .help = "signal the workers at once instead of waiting for a step; "
                             "they have the job's --shutdown_timeout",
                     .read = Into(command_line::ParseBool, request.at_once)});
}

command_line::Grammar GrammarOf(SightKind kind, RunChoices& choices, SightFlags& flags) {
  const CommandText words = TextOf(kind);
  command_line::Grammar grammar{
      .program = words.name,
      .usage = absl::StrCat(words.usage, kind == SightKind::kDrain ? "" : kWhichJob, kJobsHere),
      .footer = words.footer,
      .has_words = true};
  for (command_line::Option& option : RunGrammar(choices).options) {
    if (!FindsTheJob(option.name)) continue;
    option.group = "The job";
    if (option.name == "rdzv_endpoint") option.variables.push_back(kEndpointVariable);
    grammar.options.push_back(std::move(option));
  }
  const bool is_stop = kind == SightKind::kStop || kind == SightKind::kDrain;
  if (is_stop) AddStopOptions(flags.request, grammar.options);
  grammar.options.push_back({.name = "timeout",
                             .value_name = "SECONDS",
                             .group = is_stop ? "The stop" : "The job",
                             .help = absl::StrCat("how long to try to reach the rendezvous [",
                                                  absl::FormatDuration(flags.way.patience), "]"),
                             .read = Into(command_line::ParseDuration, flags.way.patience)});
  if (is_stop) return grammar;
  if (kind != SightKind::kStatus) {
    grammar.options.push_back({.name = "rank",
                               .value_name = "R",
                               .group = "What is printed",
                               .help = "show only this rank [all]",
                               .read = Into(ParseRank, flags.rank)});
  }
  if (kind == SightKind::kLogs) AddLogOptions(flags.logs, grammar.options);
  if (kind == SightKind::kLogs || kind == SightKind::kTop) return grammar;
  grammar.options.push_back({.name = "json",
                             .group = "What is printed",
                             .help = "print one JSON object; schema is the version of its format",
                             .read = Into(command_line::ParseBool, flags.json)});
  return grammar;
}

// The node of `drain`, or the job of the others.
absl::Status TakeWord(SightKind kind, const std::vector<std::string>& words, SightFlags& flags) {
  const bool is_drain = kind == SightKind::kDrain;
  if (words.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", words[1],
                                                   "' is one argument too many: one ",
                                                   is_drain                   ? "node is drained"
                                                   : kind == SightKind::kStop ? "job is stopped"
                                                                              : "job is looked at",
                                                   " at a time"));
  }
  const std::string word = words.empty() ? "" : words.front();
  if (is_drain && word.empty()) {
    return absl::InvalidArgumentError("no node was given; usage: muster drain [options] NODE");
  }
  if (!word.empty()) (is_drain ? flags.request.node : flags.way.job) = word;
  return absl::OkStatus();
}

}  // namespace

std::string ProgramOf(SightKind kind) { return TextOf(kind).name; }

absl::StatusOr<std::variant<SightFlags, PrintAndExit>> ParseSightFlags(
    SightKind kind, const std::vector<std::string>& args, const EnvironmentMap& environment) {
  RunChoices choices;
  SightFlags flags;
  const command_line::Grammar grammar = GrammarOf(kind, choices, flags);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, args, environment));
  if (!line.print.empty()) return PrintAndExit{std::move(line.print)};
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (line.Find("rdzv_id") != nullptr) flags.way.job = choices.spec.run_id;
  MUSTER_RETURN_IF_ERROR(TakeWord(kind, line.script, flags));
  flags.way.endpoint = EndpointOfJob(choices);
  flags.way.tls = choices.spec.tls;
  flags.way.authentication = choices.spec.authentication;
  flags.warnings = std::move(line.warnings);
  return flags;
}

}  // namespace muster::launcher
