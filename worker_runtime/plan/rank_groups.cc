#include "worker_runtime/plan/rank_groups.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/field_checks.h"

namespace muster::plan {
namespace {

// Its number among `groups`.
int AddGroup(std::vector<Group>& groups, std::string name, std::vector<int> ranks) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].ranks == ranks) return static_cast<int>(g);
  }
  groups.push_back({.name = std::move(name), .ranks = std::move(ranks)});
  return static_cast<int>(groups.size()) - 1;
}

std::vector<int> Ranks(int begin, int count, int step) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(begin + i * step);
  return ranks;
}

}  // namespace

int RanksOfShard(const Plan& plan, Mesh mesh) {
  return plan.shard_ranks == 0 ? mesh.replicas : static_cast<int>(plan.shard_ranks);
}

RankGroups PlanRankGroups(const Plan& plan, Mesh mesh, int rank) {
  RankGroups own;
  const int stage = rank / mesh.replicas;
  const int replica = rank % mesh.replicas;
  const int first = stage * mesh.replicas;
  AddGroup(own.groups, "world", Ranks(0, mesh.size(), 1));
  own.stage = AddGroup(own.groups, absl::StrCat("stage", stage), Ranks(first, mesh.replicas, 1));
  const int n = RanksOfShard(plan, mesh);
  if (plan.optimizer.placement != Placement::kShard || n == 1) return own;
  const int outer = replica / n;
  const int inner = replica % n;
  own.shards = {.group = AddGroup(own.groups, absl::StrCat("shards", stage, ".", outer),
                                  Ranks(first + outer * n, n, 1)),
                .rank = inner,
                .size = n};
  if (n < mesh.replicas) {
    own.replicas = AddGroup(own.groups, absl::StrCat("replicas", stage, ".", inner),
                            Ranks(first + inner, mesh.replicas / n, n));
  }
  const int few = static_cast<int>(plan.gathering.secondary_ranks);
  if (plan.parameters.placement != Placement::kShard || few <= 1 || few >= n) return own;
  own.secondary = {
      .group = AddGroup(own.groups, absl::StrCat("secondary", stage, ".", replica / few),
                        Ranks(first + replica / few * few, few, 1)),
      .rank = replica % few,
      .size = few};
  return own;
}

absl::Status CheckGroups(const Plan& plan, Mesh mesh) {
  const auto refuse = [](absl::string_view field, int64_t value, absl::string_view what,
                         int64_t whole) {
    return PlanError(field,
                     absl::StrCat(" is ", value, ", which does not divide ", what, ", ", whole));
  };
  if (plan.optimizer.placement != Placement::kShard) return absl::OkStatus();
  const bool of_node = plan.shard_ranks == Plan::kRanksOfNode ||
                       plan.gathering.secondary_ranks == Plan::kRanksOfNode;
  if (of_node) {
    return absl::InvalidArgumentError(
        "plan: it shards over the ranks of a node, and does not say how many these are; "
        "CompletePlan "
        "puts their number in");
  }
  const int64_t ranks = RanksOfShard(plan, mesh);
  if (mesh.replicas % ranks != 0) {
    return refuse("shard_ranks", ranks, "the ranks that train the same parameters", mesh.replicas);
  }
  const int64_t few = plan.gathering.secondary_ranks;
  if (few != 0 && ranks % few != 0) {
    return refuse("gathering.secondary_ranks", few, "the ranks of a shard group", ranks);
  }
  return absl::OkStatus();
}

}  // namespace muster::plan
