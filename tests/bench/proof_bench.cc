// How long a rank takes to set up and prove the programs of large jobs, before it makes a step.
//
//   proof_bench [--json FILE]
//
// Each row is what every rank of such a job does by itself, on one core: the model is recorded on
// the meta device, cut and planned; the programs of all ranks are compiled and proven. To reach:
// 2 s for 256 ranks, 5 s for 4096 and for a model of 4000 layers.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "muster/plan.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/plan/plan_page.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster {
namespace {

struct Case {
  std::string name;
  std::string model;
  int64_t layers = 0;
  int64_t ranks = 1;
  std::string preset;
  int64_t stages = 1;
  int64_t accumulation = 1;
  int64_t shard_ranks = 0;
  int64_t tensor_ranks = 1;
  SumMode mode = SumMode::kFast;
  double seconds_to_reach = 0;
};

std::vector<Case> Cases() {
  const Case pipeline = {.name = "pipeline of 8",
                         .model = "llama-3-70b",
                         .layers = 80,
                         .ranks = 256,
                         .preset = "ddp",
                         .stages = 8,
                         .accumulation = 64,
                         .seconds_to_reach = 2};
  std::vector<Case> cases = {pipeline};
  for (const char* preset : {"zero-2", "zero-3"}) {
    cases.push_back(pipeline);
    cases.back().name += absl::StrCat(", ", preset);
    cases.back().preset = preset;
  }
  cases.push_back(pipeline);
  cases.back().name += ", ordered";
  cases.back().mode = SumMode::kOrdered;
  cases.push_back(cases.back());
  cases.back().name += ", 60 at a time";  // ranks add their micro-batches in several ways
  cases.back().accumulation = 60;
  cases.push_back(pipeline);
  cases.back().name += ", tp=8";
  cases.back().tensor_ranks = 8;
  cases.push_back(cases.back());
  cases.back().name += ", zero-3";
  cases.back().preset = "zero-3";
  const size_t of_256 = cases.size();
  for (size_t i = 0; i < of_256; ++i) {
    cases.push_back(cases[i]);
    cases.back().ranks = 4096;
    cases.back().seconds_to_reach = 5;
  }
  cases.push_back(pipeline);
  cases.back().name += ", hybrid shards of 64";
  cases.back().preset = "hybrid-shard";
  cases.back().shard_ranks = 64;
  cases.back().ranks = 4096;
  cases.back().seconds_to_reach = 5;
  cases.push_back({.name = "4000 layers, zero-3",
                   .model = "gpt2-124m",
                   .layers = 4000,
                   .ranks = 8,
                   .preset = "zero-3",
                   .seconds_to_reach = 5});
  return cases;
}

absl::Status Prove(const plan::PlanPageInput& job) {
  const plan::ProgramInput input = plan::InputOf(job);
  MUSTER_RETURN_IF_ERROR(plan::ProveMemory(plan::CompileProgram(input, 0)));
  return plan::ProvePrograms(plan::CompileJob(input));
}

absl::StatusOr<std::string> Measure(const Case& of) {
  plan::PlanOptions options;
  MUSTER_ASSIGN_OR_RETURN(options.plan, PlanPreset(of.preset));
  MUSTER_ASSIGN_OR_RETURN(options.model, plan::FindKnownModel(of.model));
  options.model.layers = of.layers;
  options.batch_size = 1;
  options.dtype = DType::kBf16;
  options.plan.stages = of.stages;
  options.plan.accumulation = of.accumulation;
  options.plan.shard_ranks = of.shard_ranks;
  options.plan.tensor_ranks = of.tensor_ranks;
  options.plan.mode = of.mode;
  const MonoTime begin = MonoNow();
  MUSTER_ASSIGN_OR_RETURN(const plan::PlanPageInput job,
                          advice::PlanJob(options, {.world_size = of.ranks, .ranks_of_node = 8}));
  const MonoTime planned = MonoNow();
  MUSTER_RETURN_IF_ERROR(Prove(job));
  const MonoTime proven = MonoNow();
  const double set_up = absl::ToDoubleSeconds(planned - begin);
  const double proof = absl::ToDoubleSeconds(proven - planned);
  absl::PrintF("  %-36s %6d %9.2f s %9.2f s %9.2f s %6.1f s\n", of.name, of.ranks, set_up, proof,
               set_up + proof, of.seconds_to_reach);
  return absl::StrFormat(R"({"job": "%s", "ranks": %d, "set_up": %.3f, "proof": %.3f})", of.name,
                         of.ranks, set_up, proof);
}

absl::Status Run(const std::string& json) {
  absl::PrintF("  %-36s %6s %11s %11s %11s %8s\n", "job", "ranks", "set-up", "proof", "both",
               "reach");
  std::vector<std::string> rows;
  for (const Case& of : Cases()) {
    MUSTER_ASSIGN_OR_RETURN(rows.emplace_back(), Measure(of));
  }
  if (!json.empty()) std::ofstream(json) << "[" << absl::StrJoin(rows, ",\n ") << "]\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const bool has_json = argc == 3 && std::string(argv[1]) == "--json";
  if (argc != 1 && !has_json) {
    std::fprintf(stderr, "proof_bench [--json FILE]\n");
    return 2;
  }
  const absl::Status status = muster::Run(has_json ? argv[2] : "");
  if (!status.ok()) std::fprintf(stderr, "proof_bench: %s\n", status.ToString().c_str());
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
