// A small model whose programs are compiled: for tests of programs and of what carries them out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/plan.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/program_draft.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {

inline constexpr int64_t kKeptBytes = 1000;
inline constexpr int64_t kPeakBytes = 1600;

struct JobOptions {
  int64_t accumulation = 1;
  bool sharded = false;
  bool ordered = false;
  bool overlap = true;
  int64_t bucket_blocks = 3;
  bool tied = false;  // the last stage borrows the first parameter
  DType dtype = DType::kF32;
  std::string preset;  // its placements and gathering, for `sharded`
  int64_t shard_ranks = 0;
  int64_t secondary_ranks = 0;
  std::optional<DType> reduce_dtype;
  // All of units 1 and 4, and the weight of unit 2.
  bool freezes = false;
  std::string schedule = "1f1b";
  int64_t stages_per_rank = 0;
  // The trace tells of parameters too; units are of three blocks, cut behind the first.
  bool knows_parameters = false;
};

// The ranks of a job: a pipeline, each place of it with as many replicas.
struct Places {
  int stages = 1;
  int replicas = 1;
  int tensor_ranks = 1;  // they cut weights, and each unit adds up once a pass
};

// Six units of two parameters; the second fills a block, the first none.
struct Job {
  Job(Places places, const JobOptions& options) : dtype(options.dtype) {
    for (int unit = 0; unit < 6; ++unit) {
      const std::string name = "u" + std::to_string(unit);
      const bool frozen = options.freezes && (unit == 1 || unit == 4);
      const bool weight_is_frozen = frozen || (options.freezes && unit == 2);
      parameters.push_back({.name = name + ".weight",
                            .shape = {2, options.knows_parameters ? 512 : 600},
                            .unit = unit,
                            .frozen = weight_is_frozen,
                            .cut = places.tensor_ranks > 1});
      parameters.push_back({.name = name + ".bias",
                            .shape = {options.knows_parameters ? 1400 : 40},
                            .unit = unit,
                            .frozen = frozen});
    }
    plan.accumulation = options.accumulation;
    plan.stages = places.stages;
    plan.schedule = options.schedule;
    plan.stages_per_rank = options.stages_per_rank;
    plan.overlap = options.overlap;
    plan.dtypes.reduced = options.reduce_dtype;
    plan.mode = options.ordered ? SumMode::kOrdered : SumMode::kFast;
    plan.buckets.bytes_max = options.bucket_blocks * kBlockElements * 4;
    plan.buckets.first_bytes = kBlockElements * 4;
    if (options.sharded) plan.optimizer.placement = Placement::kShard;
    if (!options.preset.empty()) {
      const Plan preset = *PlanPreset(options.preset);
      plan.preset = preset.preset;
      plan.parameters = preset.parameters;
      plan.gradients = preset.gradients;
      plan.optimizer = preset.optimizer;
      plan.gathering = preset.gathering;
      plan.gathering.persistence_threshold = std::min<int64_t>(
          plan.gathering.persistence_threshold, kBlockElements);  // the smaller units
      plan.gathering.secondary_ranks = options.secondary_ranks;
      plan.shard_ranks = options.shard_ranks;
    }
    plan.tensor_ranks = places.tensor_ranks;
    mesh = *MeshOf(plan, places.stages, places.stages * places.replicas * places.tensor_ranks);
    const BlockLayout layout = PlanBlockLayout(parameters);
    UseTrace trace = AssumedTrace(static_cast<int>(parameters.size()));
    trace.kept_bytes = kKeptBytes;
    trace.peak_bytes = kPeakBytes;
    for (size_t i = 0; options.knows_parameters && i < trace.gradients.size(); ++i) {
      if (parameters[trace.gradients[i]].frozen) continue;
      trace.backward_uses.push_back(
          {.parameter = trace.gradients[i], .finished = static_cast<int>(i)});
    }
    const int num_stages = StagesOver(plan, places.stages);
    for (int stage = 0; stage < num_stages; ++stage) {
      const int first = 6 * stage / num_stages;
      const int end = 6 * (stage + 1) / num_stages;
      StageInfo info = StageOfUnits(layout, first, end, trace);
      info.received_bytes = 256;
      for (int unit = first; unit < end; ++unit) info.trace.forward.push_back(unit);
      info.trace.backward.assign(info.trace.forward.rbegin(), info.trace.forward.rend());
      if (SplitsBackward(plan)) info.trace.weights = info.trace.backward;
      // The first unit comes again, as a table that the head uses.
      if (num_stages == 1) {
        info.trace.forward.push_back(0);
        info.trace.backward.insert(info.trace.backward.begin(), 0);
      }
      if (places.tensor_ranks > 1) AddSums(info.trace);
      if (options.tied && stage > 0 && stage + 1 == num_stages) info.borrowed = {0};
      stages.push_back(std::move(info));
    }
  }

  // A sum ends each use of a forward pass, and comes between the two gradients of a unit.
  void AddSums(UseTrace& trace) const {
    for (size_t i = 0; i < trace.forward.size(); ++i) {
      trace.forward_sums.push_back({.uses = static_cast<int>(i) + 1, .bytes = 4096});
    }
    for (size_t i = 0; i < trace.backward.size(); ++i) {
      // Gradients of units that were declared later; none where the first unit is used as a table.
      const bool is_table = i == 0 && trace.backward[i] == 0 && trace.backward.size() > 1;
      const int behind = is_table ? 0 : 2 * (5 - trace.backward[i]);
      const auto uses = static_cast<int>(
          std::count_if(trace.backward_uses.begin(), trace.backward_uses.end(),
                        [&](const BackwardUse& use) { return use.finished <= behind; }));
      trace.backward_sums.push_back({.uses = static_cast<int>(i) + 1,
                                     .parameters = uses,
                                     .finished = is_table ? 0 : behind + 1,
                                     .bytes = 2048});
    }
  }

  ProgramInput Input() const {
    return {.plan = plan,
            .parameters = parameters,
            .types = TypesOf(plan, dtype),
            .mesh = mesh,
            .stages = stages};
  }
  Program ProgramOf(int rank) const { return CompileProgram(Input(), rank); }
  std::vector<Program> Programs() const {
    std::vector<Program> programs;
    for (int rank = 0; rank < mesh.size(); ++rank) programs.push_back(ProgramOf(rank));
    return programs;
  }

  Mesh mesh;
  DType dtype;
  Plan plan;
  std::vector<ParameterInfo> parameters;
  std::vector<StageInfo> stages;
};

// A draft of the program of `rank`, before it has actions. `job` outlives it.
struct DraftOf {
  explicit DraftOf(const Job& job, int rank = 0)
      : schedule(*ScheduleOf(job.plan, job.mesh.places())),
        input{.plan = job.plan,
              .parameters = job.parameters,
              .types = TypesOf(job.plan, job.dtype),
              .mesh = job.mesh,
              .stages = job.stages,
              .schedule = &schedule},
        draft(input, rank, /*the_reduces_each=*/true) {}

  const Schedule schedule;
  const ProgramInput input;
  ProgramDraft draft;
};

}  // namespace muster::plan
