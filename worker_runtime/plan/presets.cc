// Strategies under the names that people know them by.
#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "muster/plan.h"
#include "proto/base/nearest_name.h"

namespace muster {
namespace {

struct PresetName {
  const char* name;
  const char* preset;  // of this version, or nullptr: of a later one
};

// What the peers call the same placements. Source: DeepSpeed's zero_optimization.stage,
// torch.distributed.fsdp.ShardingStrategy, MiCS (arXiv:2205.00119).
constexpr std::array<PresetName, 14> kNames = {{
    {"ddp", "ddp"},
    {"no_shard", "ddp"},
    {"zero-0", "ddp"},
    {"zero-1", "zero-1"},
    {"zero-2", nullptr},
    {"zero-3", nullptr},
    {"fsdp", nullptr},
    {"fsdp2", nullptr},
    {"full_shard", nullptr},
    {"shard_grad_op", nullptr},
    {"hybrid_shard", nullptr},
    {"hybrid_shard_zero2", nullptr},
    {"hsdp", nullptr},
    {"mics", nullptr},
}};

// ZeRO-2, zero_2 and zero2 are one name.
std::string Folded(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", ""}, {"_", ""}});
}

std::string Offered() { return absl::StrJoin(PlanPresetNames(), ", "); }

}  // namespace

std::vector<std::string> PlanPresetNames() { return {"ddp", "zero-1"}; }

absl::StatusOr<Plan> PlanPreset(absl::string_view name) {
  const std::string folded = Folded(name);
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const PresetName& known) {
    return Folded(known.name) == folded;
  });
  if (found == kNames.end()) {
    std::vector<std::string> known;
    for (const PresetName& preset : kNames) known.push_back(preset.name);
    return absl::InvalidArgumentError(absl::StrCat("'", absl::Utf8SafeCHexEscape(name),
                                                   "' is not a known plan; expected ", Offered(),
                                                   DidYouMean(absl::AsciiStrToLower(name), known)));
  }
  if (found->preset == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("plan ", found->name, " is not in this version yet; expected ", Offered()));
  }
  Plan plan;
  plan.preset = found->preset;
  if (plan.preset == "zero-1") plan.optimizer.placement = Placement::kShard;
  return plan;
}

}  // namespace muster
