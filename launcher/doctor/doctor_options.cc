#include "launcher/doctor/doctor_options.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "launcher/line/run_options.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

constexpr char kDoctorUsage[] =
    "usage: muster doctor [options]\n"
    "\n"
    "Looks for what makes jobs fail or crawl on this node: GPUs, their memory and links, the\n"
    "driver, /dev/shm, limits, clock, network, host name, ports and secret. One line for each\n"
    "check, with what to do; exit code 1 if there is a fault. Before a node joins a job:\n"
    "--node_check=muster-doctor. Before each round: --round_hook=PATH, where PATH is a link to\n"
    "muster named muster-doctor.\n";

// Those of `muster run` that choose hosts.
bool ChoosesHosts(const std::string& option) {
  for (const char* name : {"hostfile", "include", "exclude", "num_nodes", "ssh_port", "ssh_config",
                           "network", "master_addr", "master_port"}) {
    if (option == name) return true;
  }
  return false;
}

command_line::Grammar GrammarOf(RunChoices& choices, DoctorFlags& flags) {
  command_line::Grammar grammar{.program = "muster doctor", .usage = kDoctorUsage};
  grammar.options.push_back({.name = "json",
                             .group = "Output",
                             .help = "one JSON object for each node, on a line",
                             .read = command_line::Into(command_line::ParseBool, flags.as_json)});
  for (command_line::Option& option : RunGrammar(choices).options) {
    if (!ChoosesHosts(option.name)) continue;
    option.group = "Hosts";
    grammar.options.push_back(std::move(option));
  }
  return grammar;
}

}  // namespace

absl::StatusOr<std::variant<DoctorFlags, PrintAndExit>> ParseDoctorFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& binary) {
  RunChoices choices;
  DoctorFlags flags;
  const command_line::Grammar grammar = GrammarOf(choices, flags);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, args, environment));
  if (!line.print.empty()) return PrintAndExit{std::move(line.print)};
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  flags.warnings = line.warnings;
  if (line.Find("hostfile") == nullptr) {
    for (const auto& [name, given] : line.values) {
      if (!ChoosesHosts(name) || given.source != absl::StrCat("--", name)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " applies to the hosts of a host file: give --hostfile=FILE"));
    }
    return flags;
  }
  for (const auto& [name, given] : line.values) {
    if (name != "json") flags.run_line.push_back(absl::StrCat("--", name, "=", given.text()));
  }
  for (const char* rest :
       {"--nproc_per_node=1", "--no_local_rank", "--console=raw", "--no_python"}) {
    flags.run_line.emplace_back(rest);
  }
  flags.run_line.insert(flags.run_line.end(), {binary, "doctor"});
  if (flags.as_json) flags.run_line.emplace_back("--json");
  return flags;
}

}  // namespace muster::launcher
