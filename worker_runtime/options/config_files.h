// --deepspeed, --accelerate and --ilab: what a file says, put among the values of a command line.
// The command line is stronger than a file, and a file stronger than one that it names.
//
// --stage_schedule: a file's schedule, put in place of its path. --model: the text of config.json,
// put in place of its directory.
//
// Threads: pure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/command_line/command_line.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

// What a command line is read beside.
struct ConfigView {
  // The text of a file. Errors: for people.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_file;
  std::string home;  // what ~ stands for
  // What the job is, where that is no option: "world_size" -> "2".
  std::map<std::string, std::string> facts;
};

// The model that --model names by its directory.
struct ModelSource {
  std::string directory;  // empty: it names none
  std::string config;     // the text of config.json in it
};

struct ConfigReport {
  // One line each: values that are overruled, and refusals that were passed over.
  std::vector<std::string> warnings;
  std::vector<std::string> without_effect;
  // The origin of an option's value, by the option's name: "ds.json:12: zero_optimization.stage",
  // "--lr", "WORLD_SIZE". Options that are missing have their default.
  std::map<std::string, std::string> sources;
  ModelSource model;
};

// The rows --deepspeed, --accelerate, --ilab and --config_compat.
std::vector<command_line::Option> ConfigFileRows();

// Adds to `line` what the files that it names say. `defaults` has the model's sizes without them.
//
// Errors: kInvalidArgument, kNotFound: as the readers of files and ParseSchedule, and what
//         `view.read_file` says.
absl::StatusOr<ConfigReport> AddConfigFiles(const command_line::Grammar& grammar,
                                            const PlanOptions& defaults, const ConfigView& view,
                                            command_line::CommandLine& line);

}  // namespace muster::plan
