#include "worker_runtime/options/mesh_option.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/mesh.h"

namespace muster::plan {
namespace {

template <typename... Text>
absl::Status Expected(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat(text...));
}

absl::StatusOr<std::map<std::string, int64_t>> ParseSizes(const std::string& text) {
  std::map<std::string, int64_t> sizes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> named = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto& [name, number] = named;
    if (name != "pp" && name != "dp" && name != "shard" && name != "tp") {
      return Expected("there is no dimension '", name,
                      "'; expected pp (stages), dp (replicas), shard and tp (tensor ranks), as in "
                      "pp=2,shard=4");
    }
    int64_t size = 0;
    if (!absl::SimpleAtoi(number, &size) || size < 1) {
      return Expected("expected a number of ranks for ", name, ", as in ", name, "=2");
    }
    if (!sizes.emplace(name, size).second) return Expected(name, " is named twice");
  }
  return sizes;
}

// Puts a size in the place of one that another option may have said.
absl::Status Say(int64_t size, absl::string_view name, absl::string_view option, bool is_said,
                 int64_t& said) {
  if (is_said && said != size) {
    return Expected(name, " is ", size, ", and --", option, " says ", said,
                    "; leave one of the two out");
  }
  said = size;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMesh(const std::string& text, PlanOptions& options) {
  using Sizes = std::map<std::string, int64_t>;
  MUSTER_ASSIGN_OR_RETURN(const Sizes sizes, ParseSizes(text));
  Plan& plan = options.plan;
  if (const auto pp = sizes.find("pp"); pp != sizes.end()) {
    const bool is_said = plan.stages != Plan().stages && plan.stages != 0;
    MUSTER_RETURN_IF_ERROR(Say(pp->second, "pp", "stages", is_said, plan.stages));
  }
  if (const auto shard = sizes.find("shard"); shard != sizes.end()) {
    if (shard->second > 1 && plan.optimizer.placement != Placement::kShard) {
      return Expected("shard is ", shard->second, ", and plan ", plan.preset,
                      " shards nothing; add --plan=zero-1, zero-2 or zero-3, or leave shard out");
    }
    MUSTER_RETURN_IF_ERROR(
        Say(shard->second, "shard", "shard_ranks", plan.shard_ranks > 0, plan.shard_ranks));
  }
  if (const auto tp = sizes.find("tp"); tp != sizes.end()) plan.tensor_ranks = tp->second;
  if (const auto dp = sizes.find("dp"); dp != sizes.end()) options.replicas = dp->second;
  return absl::OkStatus();
}

}  // namespace muster::plan
