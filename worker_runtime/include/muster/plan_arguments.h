// A plan by the options of muster-train, for programs of one's own: what users say on the command
// line, or in a configuration file of DeepSpeed, Accelerate or InstructLab.
//
//   MUSTER_ASSIGN_OR_RETURN(const PlanArguments asked,
//                           PlanFromArguments({"--deepspeed=ds.json", "--lr=1e-4"},
//                                             {.world_size = runtime->size(),
//                                              .of_node = runtime->local_size()}));
//   MUSTER_ASSIGN_OR_RETURN(auto engine, Engine::Create(*world, store, asked.plan, ...));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/decoder_config.h"
#include "muster/dtype.h"
#include "muster/plan.h"

namespace muster {

struct PlanArguments {
  Plan plan;
  DecoderConfig model;       // that --num_layers and its neighbours describe
  std::string model_files;   // the directory that --model names, for ModelFiles::Open; empty: none
  DecoderAdapters adapters;  // of --lora
  DType dtype = DType::kF32;
  std::string device = "cpu";  // or "cuda"
  int64_t batch_size = 4;      // sequences per rank and micro-batch
  int64_t steps = 200;
  // One line each: values that an option overrules, keys that change nothing, refusals passed over.
  std::vector<std::string> notes;
};

struct PlanRanks {
  int world_size = 1;
  int of_node = 1;  // that share a machine
};

// `arguments` without the program's name. Reads the files that they name; ~ is $HOME.
//
// Errors: kInvalidArgument, kNotFound, kUnimplemented: name the option, or file, line and key, with
//         the value and what works instead.
absl::StatusOr<PlanArguments> PlanFromArguments(const std::vector<std::string>& arguments,
                                                const PlanRanks& ranks);

}  // namespace muster
