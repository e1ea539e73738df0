// A small model whose programs are compiled: for tests of programs and of what carries them out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/plan.h"
#include "worker_runtime/plan/compile_program.h"

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
};

// Six units of two parameters; the second fills a block, the first none.
struct Job {
  Job(Mesh the_mesh, const JobOptions& options) : mesh(the_mesh), dtype(options.dtype) {
    for (int unit = 0; unit < 6; ++unit) {
      const std::string name = "u" + std::to_string(unit);
      parameters.push_back({.name = name + ".weight", .shape = {2, 600}, .unit = unit});
      parameters.push_back({.name = name + ".bias", .shape = {40}, .unit = unit});
    }
    plan.accumulation = options.accumulation;
    plan.overlap = options.overlap;
    plan.reduce_dtype = options.reduce_dtype;
    plan.mode = options.ordered ? SumMode::kOrdered : SumMode::kFast;
    plan.bucket_bytes_max = options.bucket_blocks * kBlockElements * 4;
    plan.first_bucket_bytes = kBlockElements * 4;
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
    const BlockLayout layout = PlanBlockLayout(parameters);
    UseTrace trace = AssumedTrace(static_cast<int>(parameters.size()));
    trace.kept_bytes = kKeptBytes;
    trace.peak_bytes = kPeakBytes;
    for (int stage = 0; stage < mesh.stages; ++stage) {
      StageInfo info = WholeModel(layout, trace);
      info.blocks.begin = layout.units[6 * stage / mesh.stages].begin;
      info.blocks.end = layout.units[6 * (stage + 1) / mesh.stages - 1].end;
      info.received_bytes = 256;
      for (int unit = 6 * stage / mesh.stages; unit < 6 * (stage + 1) / mesh.stages; ++unit) {
        info.trace.forward.push_back(unit);
      }
      info.trace.backward.assign(info.trace.forward.rbegin(), info.trace.forward.rend());
      // The first unit comes again, as a table that the head uses.
      if (mesh.stages == 1) {
        info.trace.forward.push_back(0);
        info.trace.backward.insert(info.trace.backward.begin(), 0);
      }
      if (options.tied && stage > 0 && stage + 1 == mesh.stages) info.borrowed = {0};
      stages.push_back(std::move(info));
    }
  }

  Program ProgramOf(int rank) const {
    return CompileProgram({.plan = plan,
                           .parameters = parameters,
                           .types = TypesOf(plan, dtype),
                           .mesh = mesh,
                           .stages = stages},
                          rank);
  }
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

}  // namespace muster::plan
