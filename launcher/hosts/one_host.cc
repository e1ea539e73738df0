#include "launcher/hosts/one_host.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/host_plan.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

constexpr char kHere[] = "localhost";
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

// CUDA_VISIBLE_DEVICES as it was set.
std::string InWords(const std::vector<std::string>& visible) {
  return absl::StrCat("CUDA_VISIBLE_DEVICES is ", absl::StrJoin(visible, ","));
}

bool NamesSlots(const HostChoice& choice) {
  return absl::StrContains(choice.include, ':') || absl::StrContains(choice.exclude, ':');
}

// The places in `visible` of the GPUs that `choice` names by the numbers there.
//
// Errors: those of ChooseHosts; an entry that is no number.
absl::StatusOr<std::vector<int>> ChooseByNumber(const std::vector<std::string>& visible,
                                                const HostChoice& choice) {
  std::map<int, int> places;  // by number
  for (size_t i = 0; i < visible.size(); ++i) {
    int number = 0;
    if (!absl::SimpleAtoi(visible[i], &number)) {
      return absl::InvalidArgumentError("not all are numbers");
    }
    places.emplace(number, static_cast<int>(i));
  }
  HostEntry listed{.host = kHere};
  for (const auto& [number, place] : places) listed.slots.push_back(number);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<HostEntry> chosen,
                          ChooseHosts({std::move(listed)}, choice));
  std::vector<int> chosen_places;
  for (const int number : chosen.front().slots) chosen_places.push_back(places.at(number));
  return chosen_places;
}

// The slots that were chosen, as places among the visible GPUs.
absl::StatusOr<HostEntry> ChooseSlots(const CommandLine& line, int num_gpus,
                                      const std::vector<std::string>& visible,
                                      std::vector<std::string>& notes) {
  const HostChoice choice = HostChoiceOf(line);
  const bool is_filtered = !choice.include.empty() || !choice.exclude.empty();
  HostEntry here{.host = kHere};
  const bool on_cpus = num_gpus == 0 && choice.num_gpus && !is_filtered;
  const int slots = on_cpus ? std::clamp(*choice.num_gpus, 1, kMaxSlots) : num_gpus;
  if (slots == 0) {
    return Refuse(*FirstGiven(line),
                  "no GPU was found: give --num_gpus=N alone for N workers, "
                  "or --hostfile=FILE");
  }
  const bool may_be_numbers = !visible.empty() && NamesSlots(choice);
  if (may_be_numbers) {
    absl::StatusOr<std::vector<int>> places = ChooseByNumber(visible, choice);
    if (places.ok()) {
      here.slots = *std::move(places);
      return here;
    }
  }
  for (int slot = 0; slot < slots; ++slot) here.slots.push_back(slot);
  auto chosen = ChooseHosts({std::move(here)}, choice);
  if (!chosen.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(chosen.status().message(), "; without --hostfile=FILE there is localhost ",
                     "alone, with ", slots, slots == 1 ? " slot" : " slots",
                     visible.empty() ? "" : absl::StrCat(": ", InWords(visible))));
  }
  if (may_be_numbers) {
    const Given& given = *FirstGiven(line);
    std::vector<std::string> taken;
    for (const int slot : chosen->front().slots)
      taken.push_back(visible[static_cast<size_t>(slot)]);
    notes.push_back(absl::StrCat(given.source, "=", given.text(), ": ", InWords(visible),
                                 ", and slots count from 0 within it: workers get ",
                                 absl::StrJoin(taken, ",")));
  }
  return chosen->front();
}

}  // namespace

bool HasDeepSpeedOption(const CommandLine& line) { return FirstGiven(line) != nullptr; }

absl::StatusOr<LaunchConfig> PlanOneHost(const CommandLine& line, const GpusHere& gpus,
                                         const std::string& deepspeed_env) {
  MUSTER_RETURN_IF_ERROR(CheckAlone(line));
  LaunchConfig config;
  const Given* given = FirstGiven(line);
  if (given == nullptr) return config;
  MUSTER_RETURN_IF_ERROR(ReadDeepSpeedVariables(deepspeed_env, config.environment));
  const int num_gpus = gpus.count();
  MUSTER_ASSIGN_OR_RETURN(HostEntry here, ChooseSlots(line, num_gpus, gpus.visible, config.notes));
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
