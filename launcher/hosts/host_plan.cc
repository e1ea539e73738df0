#include "launcher/hosts/host_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

// Options of ours alone: no agent is given them.
constexpr std::array<absl::string_view, 8> kHostOptions = {
    "hostfile", "include",    "exclude",  "num_nodes",
    "num_gpus", "ssh_config", "ssh_port", "no_local_rank"};
// What the host file decides.
constexpr std::array<absl::string_view, 5> kDecided = {"nnodes", "node_rank", "standalone",
                                                       "config_file", "ilab"};
// Variables of ours that every host gets, by how they begin. Others say something of this machine.
constexpr std::array<absl::string_view, 12> kSentPrefixes = {
    "ACCELERATE_", "GLOO_",  "HF_",   "MLFLOW", "MV2",         "NCCL",
    "OMP_",        "PYTHON", "TORCH", "UCX",    "VIRTUAL_ENV", "WANDB_"};

template <size_t size>
bool Holds(const std::array<absl::string_view, size>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsFlag(const command_line::Grammar& grammar, const std::string& name) {
  return std::any_of(grammar.options.begin(), grammar.options.end(),
                     [&](const command_line::Option& option) {
                       return option.name == name && option.value_name.empty();
                     });
}

std::string TextOf(const CommandLine& line, const std::string& option) {
  const Given* given = line.Find(option);
  return given == nullptr ? "" : given->text();
}

std::optional<int> NumberOf(const CommandLine& line, const std::string& option) {
  int number = 0;
  const Given* given = line.Find(option);
  if (given == nullptr || !absl::SimpleAtoi(given->text(), &number)) return std::nullopt;
  return number;
}

bool IsSent(const std::string& name) {
  return std::any_of(kSentPrefixes.begin(), kSentPrefixes.end(),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

std::vector<std::string> ArgumentsFor(const HostJob& job, const HostEntry& host,
                                      const HostSurroundings& surroundings, bool are_several) {
  std::vector<std::string> arguments;
  const std::string& run_id = surroundings.fresh_run_id;
  // Lines that were typed on each host have no random id in common.
  const bool is_typed = job.node_rank.has_value();
  if (!job.has_run_id && !is_typed) arguments.push_back("--rdzv_id=" + run_id);
  if (!job.has_place && are_several) {
    arguments.push_back("--master_addr=" + surroundings.first_address);
    if (!job.has_port && !is_typed) {
      arguments.push_back(absl::StrCat("--master_port=", PortOfJob(run_id)));
    }
  }
  if (!job.has_workers) arguments.push_back("--nproc_per_node=" + WorkersOfHost(host));
  if (!job.has_console && are_several) arguments.push_back("--console=prefix");
  arguments.insert(arguments.end(), job.options.begin(), job.options.end());
  arguments.insert(arguments.end(), {"--", job.script.front()});
  if (job.passes_local_rank) arguments.push_back(kLocalRankArgument);
  arguments.insert(arguments.end(), job.script.begin() + 1, job.script.end());
  return arguments;
}

}  // namespace

HostChoice HostChoiceOf(const CommandLine& line) {
  return {.include = TextOf(line, "include"),
          .exclude = TextOf(line, "exclude"),
          .num_nodes = NumberOf(line, "num_nodes"),
          .num_gpus = NumberOf(line, "num_gpus")};
}

std::string FindDeepSpeedVariables(const EnvironmentMap& environment,
                                   const std::function<std::string(const std::string&)>& read) {
  const std::string given = VariableOrEmpty(environment, "DS_ENV_FILE");
  const std::string name = given.empty() ? ".deepspeed_env" : given;
  std::string text;
  for (const std::string& directory : {VariableOrEmpty(environment, "HOME"), std::string(".")}) {
    const std::string lines = read(absl::StrCat(directory, "/", name));
    absl::StrAppend(&text, absl::StripPrefix(lines, kByteOrderMark), "\n");
  }
  return text;
}

absl::Status ReadDeepSpeedVariables(const std::string& text, EnvironmentMap& out) {
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(".deepspeed_env, line ", number, ": '", line, "': expected NAME=value"));
    }
    out[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
  }
  return absl::OkStatus();
}

std::string WorkersOfHost(const HostEntry& host) {
  if (host.are_all_slots) return absl::StrCat(host.slots.size());
  return absl::StrCat("gpu:", absl::StrJoin(host.slots, ","));
}

absl::StatusOr<HostJob> MakeHostJob(const command_line::Grammar& grammar, const CommandLine& line) {
  HostJob job{.host_file = TextOf(line, "hostfile"),
              .choice = HostChoiceOf(line),
              .ssh_config = TextOf(line, "ssh_config"),
              .ssh_port = NumberOf(line, "ssh_port").value_or(0),
              .passes_local_rank = !line.IsOn("no_local_rank"),
              .authentication = TextOf(line, "auth") != "none",
              .script = line.script};
  if (job.script.empty() || job.script.front().empty()) {
    return absl::InvalidArgumentError(
        "no script was given; usage: muster run --hostfile=FILE [options] SCRIPT [arguments]");
  }
  for (const auto& [name, given] : line.values) {
    if (Holds(kHostOptions, name)) continue;
    if (name == "node_rank" && !absl::StartsWith(given.source, "PET_")) {
      job.node_rank = NumberOf(line, name);
      continue;
    }
    if (Holds(kDecided, name)) {
      return command_line::At(given.source, given.text(),
                              absl::InvalidArgumentError("--hostfile decides that"));
    }
    const bool is_flag = IsFlag(grammar, name);
    if (is_flag && !line.IsOn(name)) continue;
    job.options.push_back(is_flag ? "--" + name : absl::StrCat("--", name, "=", given.text()));
  }
  const auto has = [&](const char* name) { return line.Find(name) != nullptr; };
  job.has_place = has("rdzv_endpoint") || has("master_addr");
  job.has_port = has("master_port");
  job.has_run_id = has("rdzv_id");
  job.has_workers = has("nproc_per_node");
  if (!has("omp_threads")) job.options.push_back("--omp_threads=none");  // as `deepspeed` leaves it
  job.has_console = has("console") || has("tee") || has("role") || has("log_line_prefix_template");
  return job;
}

absl::StatusOr<std::vector<RemoteStart>> PlanHosts(const HostJob& job,
                                                   const std::vector<HostEntry>& hosts,
                                                   const HostSurroundings& surroundings) {
  EnvironmentMap common;
  for (const auto& [name, value] : surroundings.environment) {
    if (IsSent(name)) common[name] = value;
  }
  MUSTER_RETURN_IF_ERROR(ReadDeepSpeedVariables(surroundings.deepspeed_env, common));
  if (!surroundings.token.empty()) common["MUSTER_TOKEN"] = surroundings.token;
  common["CROSS_SIZE"] = absl::StrCat(hosts.size());
  common["MUSTER_HOSTFILE_NODES"] = absl::StrCat(hosts.size());
  std::vector<RemoteStart> starts;
  for (size_t i = 0; i < hosts.size(); ++i) {
    RemoteStart start{.directory = surroundings.directory,
                      .arguments = ArgumentsFor(job, hosts[i], surroundings, hosts.size() > 1),
                      .environment = common};
    start.environment["CROSS_RANK"] = absl::StrCat(i);
    start.environment["LOCAL_SIZE"] = absl::StrCat(hosts[i].slots.size());
    if (hosts[i].are_all_slots && !job.has_workers) {  // else --nproc_per_node=gpu:... sets it
      start.environment["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(hosts[i].slots, ",");
    }
    start.environment["MUSTER_HOSTFILE_RANK"] = absl::StrCat(i);
    start.environment["MUSTER_HOSTFILE_NAME"] = hosts[i].host;
    starts.push_back(std::move(start));
  }
  return starts;
}

}  // namespace muster::launcher
