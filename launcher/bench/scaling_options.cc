#include "launcher/bench/scaling_options.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Into;

constexpr int kRanksMax = 1024;
constexpr char kBenchUsage[] =
    "usage: muster bench scaling [options] [--] [options of muster run] PROGRAM [arguments]\n"
    "\n"
    "Runs PROGRAM on this node at several numbers of ranks, one after the other, and prints steps\n"
    "per second, scaling efficiency, and where the rest went: waiting for other ranks, or slower\n"
    "work of each. The program must report its steps, as programs on our runtime do "
    "(muster-train)\n"
    "and scripts with `import muster_marks`. Each run is stopped once it has been measured.\n";

absl::StatusOr<std::vector<int>> ParseRanks(const std::string& text) {
  std::vector<int> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::StatusOr<int> number = command_line::ParseInteger(std::string(part));
    const int before = ranks.empty() ? 0 : ranks.back();
    if (!number.ok() || *number <= before || *number > kRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ascending numbers of ranks, as in 1,2,4, at most ", kRanksMax));
    }
    ranks.push_back(*number);
  }
  return ranks;
}

command_line::Grammar GrammarOf(ScalingFlags& flags) {
  command_line::Grammar grammar{
      .program = "muster bench scaling", .usage = kBenchUsage, .ends_at_script = true};
  grammar.options.push_back({.name = "ranks",
                             .value_name = "LIST",
                             .group = "What is measured",
                             .help = "numbers of ranks, ascending; the first is the base that the "
                                     "others are compared with [1,2,4 and so on, up to the GPUs or "
                                     "CPUs of this node]",
                             .read = Into(ParseRanks, flags.ranks)});
  grammar.options.push_back({.name = "seconds",
                             .value_name = "S",
                             .group = "What is measured",
                             .help = absl::StrCat("how long to measure at each number of ranks, "
                                                  "after two steps of warm-up [",
                                                  absl::FormatDuration(flags.seconds), "]"),
                             .read = Into(command_line::ParseDuration, flags.seconds)});
  grammar.options.push_back({.name = "global_batch",
                             .group = "What is measured",
                             .help = "the ranks share one batch, so ideally N ranks do N times as "
                                     "many steps per second; without it each has its own batch, "
                                     "and as many steps as one rank are ideal",
                             .read = Into(command_line::ParseBool, flags.global_batch)});
  grammar.options.push_back({.name = "timeout",
                             .value_name = "S",
                             .group = "What is measured",
                             .help = absl::StrCat("how long a run may take to its first step, and "
                                                  "to each further one [",
                                                  absl::FormatDuration(flags.timeout), "]"),
                             .read = Into(command_line::ParseDuration, flags.timeout)});
  return grammar;
}

// What the command itself decides for each run.
absl::Status CheckRunLine(const std::vector<std::string>& run_line) {
  for (const std::string& word : run_line) {
    if (!absl::StartsWith(word, "-")) return absl::OkStatus();
    for (const char* name : {"--nproc_per_node", "--nproc-per-node", "--nnodes"}) {
      if (absl::StartsWith(word, name)) {
        return absl::InvalidArgumentError(
            absl::StrCat(word, ": the number of workers is chosen by --ranks, on this node alone"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::variant<ScalingFlags, PrintAndExit>> ParseScalingFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment) {
  ScalingFlags flags;
  const command_line::Grammar grammar = GrammarOf(flags);
  std::vector<std::string> rest = args;
  const bool asks_for_help = !rest.empty() && (rest.front() == "--help" || rest.front() == "-h");
  if (rest.empty() || (rest.front() != "scaling" && !asks_for_help)) {
    return absl::InvalidArgumentError(absl::StrCat(
        rest.empty() ? "no benchmark was given" : absl::StrCat("'", rest.front(), "' is unknown"),
        "; there is one: muster bench scaling [options] PROGRAM"));
  }
  if (!asks_for_help) rest.erase(rest.begin());
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, rest, environment));
  if (!line.print.empty()) return PrintAndExit{std::move(line.print)};
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (line.script.empty()) {
    return absl::InvalidArgumentError(
        "no program was given; usage: muster bench scaling [options] PROGRAM [arguments]");
  }
  if (flags.seconds <= absl::ZeroDuration() || flags.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--seconds and --timeout must be above 0");
  }
  MUSTER_RETURN_IF_ERROR(CheckRunLine(line.script));
  flags.run_line = std::move(line.script);
  flags.warnings = std::move(line.warnings);
  return flags;
}

std::vector<int> UsualRanks(int most) {
  std::vector<int> ranks;
  for (int number = 1; number < most; number *= 2) ranks.push_back(number);
  ranks.push_back(most);
  return ranks;
}

}  // namespace muster::launcher
