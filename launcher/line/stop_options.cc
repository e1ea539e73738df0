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
    "usage: muster stop [options]\n"
    "\n"
    "Ends a job with exit code 0. Ranks of programs that ask whether to stop leave after the same\n"
    "step; other programs are signalled after the job's --shutdown_timeout.\n";
constexpr char kDrainUsage[] =
    "usage: muster drain [options] NODE\n"
    "\n"
    "Takes a node out of a job: every rank leaves after the same step, and the next round begins\n"
    "without the node. NODE is its name, as in the job's output, or its address.\n";

command_line::Grammar GrammarOf(StopCommandKind kind, RunChoices& choices, StopFlags& flags) {
  const bool is_drain = kind == StopCommandKind::kDrain;
  command_line::Grammar grammar{.program = is_drain ? "muster drain" : "muster stop",
                                .usage = is_drain ? kDrainUsage : kStopUsage,
                                .ends_at_script = is_drain};
  for (command_line::Option& option : RunGrammar(choices).options) {
    if (!FindsTheJob(option.name)) continue;
    option.group = "The job";
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

absl::Status TakeNode(const command_line::CommandLine& line, StopRequest& request) {
  if (line.script.empty() || line.script.front().empty()) {
    return absl::InvalidArgumentError("no node was given; usage: muster drain [options] NODE");
  }
  if (line.script.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", line.script[1],
                     "' is one argument too many: options go in front of the node, "
                     "and one node is drained at a time"));
  }
  request.node = line.script.front();
  return absl::OkStatus();
}

absl::Status TakeEndpoint(const RunChoices& choices, const std::string& program, StopFlags& flags) {
  const std::optional<Endpoint> endpoint = EndpointOfJob(choices);
  if (!endpoint) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rdzv_endpoint is missing: give the job's, as in `", program,
        " --rdzv_endpoint=node1:29400 --rdzv_id=ID` (a job on one node that has none is "
        "stopped by SIGTERM to its muster)"));
  }
  flags.endpoint = *endpoint;
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
  if (kind == StopCommandKind::kDrain) MUSTER_RETURN_IF_ERROR(TakeNode(line, flags.request));
  MUSTER_RETURN_IF_ERROR(TakeEndpoint(choices, grammar.program, flags));
  flags.run_id = choices.spec.run_id;
  flags.tls = choices.spec.tls;
  flags.authentication = choices.spec.authentication;
  flags.warnings = std::move(line.warnings);
  return flags;
}

}  // namespace muster::launcher
