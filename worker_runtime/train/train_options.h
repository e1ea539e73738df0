// The command line of muster-train.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/command_line/command_line.h"
#include "worker_runtime/options/config_files.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/train/console.h"
#include "worker_runtime/train/files.h"
#include "worker_runtime/train/step_trace.h"

namespace muster::train {

// The ranks agree on a back end (Runtime::MakeCommunicator).
inline constexpr char kAutoBackend[] = "auto";

struct TrainOptions {
  plan::PlanOptions plan;

  std::vector<std::string> data;  // empty: DefaultTexts()
  std::string backend = kAutoBackend;
  // Steps as CUDA graphs; nothing: as the engine does it (EngineOptions::captures_steps).
  std::optional<bool> capture_steps;
  bool register_buffers = false;  // EngineOptions::registers_buffers

  SaveOptions saving;
  // A checkpoint, or a directory of them; empty: none. Where it equals `saving.directory` it may be
  // empty yet, so that one command line serves the first start and every restart.
  std::string resume;

  // The directory of transformers' files whose weights training begins with (--model); empty: they
  // are drawn from the seed.
  plan::ModelSource model;

  // A checkpoint of the model beneath adapters (--lora), or a directory of them; empty: that model
  // is drawn from the seed. What is saved and resumed are the adapters alone.
  std::string base;

  // Go on in the same process when other workers or nodes are lost (Runtime::SurviveRounds).
  bool survive = false;

  int64_t sample_tokens = 300;        // written by the model at the end; 0: none
  std::optional<std::string> prompt;  // which the sample continues
  TraceOptions trace;
  PrintOptions print;

  command_line::CommandLine line;  // that gave all this
};

struct TrainCommand {
  TrainOptions options;
  std::vector<std::string> warnings;        // accepted, but worth a line
  std::vector<std::string> without_effect;  // keys of files that change nothing, with the reason
  std::string help;                         // not empty: to be printed, and nothing else done
};

// What --help and the like ask for, without anything else being read; empty: they do not.
std::string TrainHelp(const std::vector<std::string>& args);

// `args` without the program's name; `files` for --deepspeed and the like, and the job's size.
//
// Errors: kInvalidArgument naming the flag, the value and what was expected;
//          plan::FinishPlanOptions',
//         plan::AddConfigFiles'.
absl::StatusOr<TrainCommand> ParseTrainCommand(const std::vector<std::string>& args,
                                               const plan::ConfigView& files = {});

// What all ranks must have been given alike.
std::string TextOfCommonValues(const TrainOptions& options);

// What is found only once there is a model, as "plan: unit_costs: …" of the engine, in the words of
// the options: "--unit_costs: …". An error of no field of theirs stays as it is.
absl::Status InWordsOf(const TrainOptions& options, const absl::Status& status);

// Whether `size` ranks, whose communicators capture calls or not, can do what --capture_steps asks
// for.
//
// Errors: kInvalidArgument: why not, and what to change.
// Threads: pure.
absl::Status CheckCapture(const TrainOptions& options, int size, bool communicators_capture);

}  // namespace muster::train
