// Trains a decoder for some steps and leaves all that another framework needs to do the same:
//
//   parity_probe DIR TEXT STEPS MICRO_BATCHES [bf16|f16|f16-torch]
//   parity_probe DIR TEXT STEPS --OPTION...   a plan by the options of muster-train
//
//   DIR/initial/model.safetensors  the initial values
//   DIR/batches.bin                int32: inputs, then targets, of every micro-batch in order
//   DIR/losses.txt                 one loss per step, exact
//
// MICRO_BATCHES are those of a step, over all ranks. Parameters are of f32 unless it is said
// otherwise; the losses of f16 are scaled by 65536, those of f16-torch as GradScaler does. Its
// readers: those of parity_gpt.py.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "muster/data.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/plan_arguments.h"
#include "muster/runtime.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/export.h"

namespace muster {
namespace {

constexpr DecoderConfig kConfig = {.layers = 2, .heads = 4, .hidden_size = 64, .context = 32};
constexpr int64_t kRows = 3;

struct Arguments {
  std::string directory;
  std::string text;
  int64_t steps = 0;
  int64_t micro_batches = 0;
  DType dtype = DType::kF32;
  LossScaling scaling;
  std::vector<std::string> options;  // of a plan; empty: DDP
};

struct Training {
  Plan plan;
  DecoderConfig model = kConfig;
  DecoderAdapters adapters;
  int64_t rows = kRows;
  DType dtype = DType::kF32;
};

absl::StatusOr<Training> TrainingOf(const Arguments& arguments, const Runtime& runtime) {
  Training training = {.dtype = arguments.dtype};
  if (!arguments.options.empty()) {
    MUSTER_ASSIGN_OR_RETURN(
        const PlanArguments asked,
        PlanFromArguments(arguments.options,
                          {.world_size = runtime.size(), .of_node = runtime.local_size()}));
    const bool names_model = asked.model != DecoderConfig();
    return Training{asked.plan, names_model ? asked.model : kConfig, asked.adapters,
                    asked.batch_size, asked.dtype};
  }
  training.plan.accumulation = arguments.micro_batches / runtime.size();
  training.plan.learning_rate = {.peak = 1e-3};
  training.plan.loss_scaling = arguments.scaling;
  return training;
}

absl::Status WriteBatches(const TokenSource& source, const BatchOptions& options,
                          const Arguments& arguments) {
  std::ofstream file(arguments.directory + "/batches.bin", std::ios::binary);
  Batch batch;
  for (int64_t step = 0; step < arguments.steps; ++step) {
    for (int64_t index = 0; index < options.accumulation * options.size; ++index) {
      MUSTER_RETURN_IF_ERROR(FillBatch(source, options, step, index, batch));
      for (const auto* ids : {&batch.inputs, &batch.targets}) {
        file.write(reinterpret_cast<const char*>(ids->data()), ids->size() * sizeof(int32_t));
      }
    }
  }
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write batches.bin");
}

absl::Status ExportInitial(const std::string& directory) {
  MUSTER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint saved,
                          checkpoint::Checkpoint::Open(directory + "/step_00000000"));
  return checkpoint::ExportWhole(saved, directory + "/initial");
}

absl::Status Run(const Arguments& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world"));
  MUSTER_ASSIGN_OR_RETURN(const auto source, OpenTokens({arguments.text}));
  MUSTER_ASSIGN_OR_RETURN(Training training, TrainingOf(arguments, *runtime));
  training.model.context = kConfig.context;
  training.model.vocabulary = source->vocabulary();
  ParameterStore store(training.dtype);
  MUSTER_ASSIGN_OR_RETURN(const auto model,
                          Decoder::Create(training.model, store, training.adapters));
  const Plan& plan = training.plan;
  MUSTER_ASSIGN_OR_RETURN(const auto engine,
                          Engine::Create(*world, store, plan, model->Units(),
                                         {.batch = training.rows, .sequence = kConfig.context}));
  MUSTER_RETURN_IF_ERROR(engine->Save(arguments.directory, {}));
  if (world->rank() == 0) MUSTER_RETURN_IF_ERROR(ExportInitial(arguments.directory));
  const BatchOptions options = {.rank = world->rank(),
                                .size = world->size(),
                                .accumulation = plan.accumulation,
                                .batch = training.rows,
                                .sequence = kConfig.context};
  MUSTER_ASSIGN_OR_RETURN(const auto reader, BatchReader::Create(*source, options));
  std::string losses;
  for (int64_t step = 0; step < arguments.steps; ++step) {
    MUSTER_ASSIGN_OR_RETURN(const StepResult result,
                            engine->Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
                              MUSTER_ASSIGN_OR_RETURN(const Batch* batch, reader->Next());
                              return model->ComputeLoss(tape, batch->tokens(), batch->targets);
                            }));
    absl::StrAppendFormat(&losses, "%.17g\n", result.loss);
  }
  if (world->rank() == 0) {
    MUSTER_RETURN_IF_ERROR(WriteBatches(*source, options, arguments));
    std::ofstream(arguments.directory + "/losses.txt") << losses;
  }
  return runtime->Finish(engine->step());
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  muster::Arguments arguments = {
      .directory = argv[1], .text = argv[2], .steps = std::atoll(argv[3])};
  if (argv[4][0] == '-') {
    arguments.options.assign(argv + 4, argv + argc);
  } else {
    arguments.micro_batches = std::atoll(argv[4]);
    const std::string type = argc == 6 ? argv[5] : "f32";
    if (type == "bf16") arguments.dtype = muster::DType::kBf16;
    if (type == "f16" || type == "f16-torch") {
      arguments.dtype = muster::DType::kF16;
      arguments.scaling =
          type == "f16" ? muster::LossScaling::Static(65536) : muster::LossScaling::Torch();
    }
  }
  const absl::Status status = muster::Run(arguments);
  if (!status.ok()) std::fprintf(stderr, "parity_probe: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
