#include "launcher/line/stop_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/line/run_options.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Into;

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

command_line::Grammar GrammarOf(StopCommandKind kind, RunChoices& choices, StopFlags& flags) {
  const bool is_drain = kind == StopCommandKind::kDrain;
  command_line::Grammar grammar{.program = is_drain ? "muster drain" : "muster stop",
                                .usage = is_drain ? absl::StrCat(kDrainUsage, kJobsHere)
                                                  : absl::StrCat(kStopUsage, kWhichJob, kJobsHere),
                                .has_words = true};
  for (command_line::Option& option : RunGrammar(choices).options) {
    if (!FindsTheJob(option.name)) continue;
    option.group = "The job";
    if (option.name == "rdzv_endpoint") option.variables.push_back(kEndpointVariable);
    grammar.options.push_back(std::move(option));
  }
  grammar.options.push_back({.name = "reason",
                             .value_name = "TEXT",
                             .group = "The stop",
                             .help = "reason, printed on every node",
                             .read = Into(command_line::ParseText, flags.request.reason)});
  grammar.options.push_back({.name = "now",
                             .group = "The stop",
                             .help = "signal the workers at once instead of waiting for a step; "
                                     "they have the job's --shutdown_timeout",
                             .read = Into(command_line::ParseBool, flags.request.at_once)});
  grammar.options.push_back({.name = "timeout",
                             .value_name = "SECONDS",
                             .group = "The stop",
                             .help = absl::StrCat("how long to try to reach the rendezvous [",
                                                  absl::FormatDuration(flags.patience), "]"),
                             .read = Into(command_line::ParseDuration, flags.patience)});
  return grammar;
}

// The node of `drain`, or the job of `stop`.
absl::Status TakeWord(StopCommandKind kind, const std::vector<std::string>& words,
                      StopFlags& flags) {
  const bool is_drain = kind == StopCommandKind::kDrain;
  if (words.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", words[1], "' is one argument too many: one ", is_drain ? "node" : "job",
                     is_drain ? " is drained at a time" : " is stopped at a time"));
  }
  const std::string word = words.empty() ? "" : words.front();
  if (is_drain && word.empty()) {
    return absl::InvalidArgumentError("no node was given; usage: muster drain [options] NODE");
  }
  if (is_drain) {
    flags.request.node = word;
  } else if (!word.empty()) {
    flags.run_id = word;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::variant<StopFlags, PrintAndExit>> ParseStopFlags(
    StopCommandKind kind, const std::vector<std::string>& args, const EnvironmentMap& environment) {
  RunChoices choices;
  StopFlags flags;
  const command_line::Grammar grammar = GrammarOf(kind, choices, flags);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, args, environment));
  if (!line.print.empty()) return PrintAndExit{std::move(line.print)};
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (line.Find("rdzv_id") != nullptr) flags.run_id = choices.spec.run_id;
  MUSTER_RETURN_IF_ERROR(TakeWord(kind, line.script, flags));
  flags.endpoint = EndpointOfJob(choices);
  flags.tls = choices.spec.tls;
  flags.authentication = choices.spec.authentication;
  flags.warnings = std::move(line.warnings);
  return flags;
}

}  // namespace muster::launcher
