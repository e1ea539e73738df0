#include "launcher/hosts/one_host.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/host_plan.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

constexpr std::array<absl::string_view, 5> kDeepSpeedOptions = {"include", "exclude", "num_nodes",
                                                                "num_gpus", "no_local_rank"};

// The first of DeepSpeed's options that was given; nullptr: none was.
const Given* FirstGiven(const CommandLine& line) {
  for (absl::string_view option : kDeepSpeedOptions) {
    if (const Given* given = line.Find(option)) return given;
  }
  return nullptr;
}

absl::Status Refuse(const Given& given, std::string why) {
  return command_line::At(given.source, given.text(), absl::InvalidArgumentError(why));
}

absl::Status CheckAlone(const CommandLine& line) {
  for (const char* option : {"ssh_config", "ssh_port"}) {
    if (const Given* given = line.Find(option)) return Refuse(*given, "needs --hostfile=FILE");
  }
  const Given* workers = line.Find("nproc_per_node");
  const Given* theirs = FirstGiven(line);
  if (workers == nullptr || theirs == nullptr) return absl::OkStatus();
  return Refuse(*workers, absl::StrCat("cannot be given beside ", theirs->source,
                                       ", by which DeepSpeed's ways "
                                       "of choosing workers were asked for"));
}

absl::StatusOr<HostEntry> ChooseSlots(const CommandLine& line, int num_gpus) {
  const HostChoice choice = HostChoiceOf(line);
  const bool is_filtered = !choice.include.empty() || !choice.exclude.empty();
  HostEntry here{.host = "localhost"};
  const bool on_cpus = num_gpus == 0 && choice.num_gpus && !is_filtered;
  const int slots = on_cpus ? std::clamp(*choice.num_gpus, 1, kMaxSlots) : num_gpus;
  if (slots == 0) {
    return Refuse(*FirstGiven(line),
                  "no GPU was found: give --num_gpus=N alone for N workers, "
                  "or --hostfile=FILE");
  }
  for (int slot = 0; slot < slots; ++slot) here.slots.push_back(slot);
  auto chosen = ChooseHosts({std::move(here)}, choice);
  if (!chosen.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        chosen.status().message(), "; without --hostfile=FILE there is localhost alone, with ",
        slots, slots == 1 ? " slot" : " slots"));
  }
  return chosen->front();
}

}  // namespace

bool HasDeepSpeedOption(const CommandLine& line) { return FirstGiven(line) != nullptr; }

absl::StatusOr<LaunchConfig> PlanOneHost(const CommandLine& line,
                                         const std::function<int()>& count_gpus,
                                         const std::string& deepspeed_env) {
  MUSTER_RETURN_IF_ERROR(CheckAlone(line));
  LaunchConfig config;
  const Given* given = FirstGiven(line);
  if (given == nullptr) return config;
  MUSTER_RETURN_IF_ERROR(ReadDeepSpeedVariables(deepspeed_env, config.environment));
  const int num_gpus = count_gpus();
  MUSTER_ASSIGN_OR_RETURN(HostEntry here, ChooseSlots(line, num_gpus));
  here.are_all_slots = num_gpus == 0;  // else the list of GPUs is a variable, even of all of them
  config.options.push_back({"nproc_per_node", WorkersOfHost(here), given->source});
  if (line.Find("omp_threads") == nullptr) {
    config.options.push_back({"omp_threads", "none", given->source});  // as `deepspeed` leaves it
  }
  config.environment["LOCAL_SIZE"] = absl::StrCat(here.slots.size());
  return config;
}

EnvironmentMap ToldOfNodes(const JobSpec& spec) {
  return {{"CROSS_RANK", absl::StrCat(spec.node_rank.value_or(0))},
          {"CROSS_SIZE", absl::StrCat(spec.max_nodes)}};
}

}  // namespace muster::launcher
