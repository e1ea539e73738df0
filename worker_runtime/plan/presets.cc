// Strategies under the names that people know them by.
#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "muster/plan.h"
#include "proto/base/nearest_name.h"

namespace muster {
namespace {

struct PresetName {
  const char* name;
  const char* preset;
};

// What the peers call the same placements. Source: DeepSpeed's zero_optimization.stage,
// zero_hpz_partition_size and mics_shard_size; torch.distributed.fsdp.ShardingStrategy and
// fully_shard; MiCS (arXiv:2205.00119).
constexpr std::array<PresetName, 26> kNames = {{
    {"1f1b", "1f1b"},
    {"pipeline", "1f1b"},
    {"ddp", "ddp"},
    {"no_shard", "ddp"},
    {"zero-0", "ddp"},
    {"zero-1", "zero-1"},
    {"zero-2", "zero-2"},
    {"zero-3", "zero-3"},
    {"zero-3-hpz", "zero-3-hpz"},
    {"hpz", "zero-3-hpz"},
    {"zero++", "zero-3-hpz"},
    {"mics", "mics"},
    {"fsdp", "full-shard"},
    {"fsdp1", "full-shard"},
    {"fsdp2", "full-shard"},
    {"fully_shard", "full-shard"},
    {"full_shard", "full-shard"},
    {"shard_grad_op", "shard-grad-op"},
    {"fsdp-zero2", "shard-grad-op"},
    {"hybrid_shard", "hybrid-shard"},
    {"fsdp-hybrid", "hybrid-shard"},
    {"hsdp", "hybrid-shard"},
    {"hybrid_shard_zero2", "hybrid-shard-zero2"},
    {"hsdp-zero2", "hybrid-shard-zero2"},
    {"distributed_data_parallel", "ddp"},
    {"distributed_optimizer", "zero-1"},
}};

// ZeRO-2, zero_2 and zero2 are one name; fsdp:full_shard is full_shard.
std::string PresetKey(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  absl::string_view rest = lower;
  if (!absl::ConsumePrefix(&rest, "fsdp:")) absl::ConsumePrefix(&rest, "fsdp2:");
  return absl::StrReplaceAll(rest, {{"-", ""}, {"_", ""}});
}

std::string Offered() { return absl::StrJoin(PlanPresetNames(), ", "); }

void Shard(StatePlan& state) { state.placement = Placement::kShard; }

// DeepSpeed's defaults of stage3_prefetch_bucket_size, _max_live_parameters, _max_reuse_distance
// and _param_persistence_threshold.
GatherPlan AsDeepSpeed() {
  return {.reshard_after_forward = true,
          .prefetch_units = GatherPlan::kNoLimit,
          .prefetch_elements = 50'000'000,
          .max_live_elements = 1'000'000'000,
          .max_reuse_distance = 1'000'000'000,
          .persistence_threshold = 100'000};
}

Plan PlanOf(const std::string& preset) {
  Plan plan;
  plan.preset = preset;
  if (preset == "1f1b") plan.stages = 0;
  if (preset == "ddp" || preset == "1f1b") return plan;
  Shard(plan.optimizer);
  if (preset == "zero-1") return plan;
  Shard(plan.gradients);
  if (preset == "zero-2") return plan;
  Shard(plan.parameters);
  const bool is_deepspeed = preset == "zero-3" || preset == "zero-3-hpz" || preset == "mics";
  if (is_deepspeed) plan.gathering = AsDeepSpeed();
  plan.gathering.reshard_after_forward =
      preset != "shard-grad-op" && preset != "hybrid-shard-zero2";
  if (absl::StartsWith(preset, "hybrid") || preset == "mics") plan.shard_ranks = Plan::kRanksOfNode;
  if (preset == "zero-3-hpz") plan.gathering.secondary_ranks = Plan::kRanksOfNode;
  return plan;
}

}  // namespace

std::vector<std::string> PlanPresetNames() {
  return {"ddp",        "zero-1",        "zero-2",       "zero-3",
          "full-shard", "shard-grad-op", "hybrid-shard", "hybrid-shard-zero2",
          "mics",       "zero-3-hpz",    "1f1b"};
}

absl::StatusOr<Plan> PlanPreset(absl::string_view name) {
  const std::string folded = PresetKey(name);
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const PresetName& known) {
    return PresetKey(known.name) == folded;
  });
  if (found != kNames.end()) return PlanOf(found->preset);
  // Compared as they are understood, so that zero3x is one letter from zero-3.
  std::vector<std::string> known;
  for (const PresetName& preset : kNames) known.push_back(PresetKey(preset.name));
  const std::string nearest = NearestName(folded, known);
  const auto meant = std::find(known.begin(), known.end(), nearest);
  const std::string hint =
      meant == known.end()
          ? ""
          : absl::StrCat("; did you mean ", kNames[meant - known.begin()].name, "?");
  return absl::InvalidArgumentError(absl::StrCat(
      "'", absl::Utf8SafeCHexEscape(name), "' is not a known plan; expected ", Offered(), hint));
}

}  // namespace muster
