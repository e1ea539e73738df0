// What `muster plan` prints: what a training job does and what it costs, before anything runs.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {

// A value that was said, and by whom: an option, a line of a file, a variable.
struct GivenValue {
  std::string option;
  std::string value;
  std::string source;
};

// The sources of what is planned.
struct PlanSources {
  std::vector<GivenValue> given;
  std::map<std::string, std::string>
      by_field;                             // of Describe(plan); a field that is missing: default
  std::vector<std::string> without_effect;  // keys of files, each with the reason
};

struct PlanPageInput {
  PlanOptions options;
  PlanSources sources;
  int64_t world_size = 1;
  int64_t ranks_of_node = 1;  // that share a machine
  // That each rank's GPU takes for itself, and of the host, pinned, at most; 0: there are none.
  int64_t gpu_bytes = 0;
  int64_t pinned_bytes_max = 0;
  std::string hash;  // of CanonicalText; what the engine compares between ranks
  std::string fits;  // whether devices that are known hold it, for people; empty: none are known
  bool verbose = false;
  // The model that options.model describes: its units, their parameters, and what a micro-batch
  // does to them and to memory in each stage (engine/cut_model.h). places() divides world_size.
  std::vector<std::string> unit_names;
  std::vector<ParameterInfo> parameters;
  std::vector<StageInfo> stages;

  // When sharded gradients are reduced, where `options.plan` left it open and several micro-batches
  // make it matter; else kChosen.
  ReductionChoice reduction = {.chosen = GradientReduction::kChosen};

  // Ranks of the pipeline, each of which stands for its replicas.
  int64_t places() const { return RanksOf(options.plan, static_cast<int>(stages.size())); }
  int64_t replicas() const { return world_size / places() / options.plan.tensor_ranks; }
};

// What the rank that needs most takes for a step, and sends.
struct RankMemory {
  StepFigures figures;
  int64_t exchange = 0;
  int64_t gpu = 0;  // for itself; with one, what ranks exchange in is the host's
  int64_t total() const { return TotalOf(figures.peak) + (gpu > 0 ? gpu : exchange); }
};
RankMemory MemoryOfRank(const PlanPageInput& input);
// That of the programs (ReductionOf), as an engine decides it; kChosen where there is no choice.
ReductionChoice DecideReduction(const PlanPageInput& input);
// Whether states can rest where they are to, on this device. With `job` it says how much of the
// device they take.
//
// Errors: kUnimplemented: they cannot, and what to do.
absl::Status CheckOffload(const PlanOptions& options, const PlanPageInput* job = nullptr);
// The program of that rank.
Program ProgramOf(const PlanPageInput& input);
// What the programs of all ranks are made from. It refers to `input`.
ProgramInput InputOf(const PlanPageInput& input);

// Three digits and a unit: "1.21 GiB".
std::string ReadableBytes(int64_t bytes);

// What was said and where, and what changes nothing; empty where nothing was said.
std::string SourcesText(const PlanSources& sources);

// Lines of text: what a rank takes and whether that fits, model, plan, step, stages of a pipeline,
// memory per rank, bytes sent. Every field of the plan, how parameters are gathered, and buckets,
// where it is verbose; else only what was said of the plan.
//
// Errors: kInvalidArgument: more tokens than can be counted.
absl::StatusOr<std::string> FormatPlanPage(const PlanPageInput& input);

}  // namespace muster::plan
