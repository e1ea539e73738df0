#include "worker_runtime/plan/mesh_page.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/field_error.h"
#include "worker_runtime/plan/schedules/schedule_page.h"

namespace muster::plan {
namespace {

constexpr int kMostNodes = 8;

struct Named {
  absl::string_view name;
  Dimensions along;
};
// These are the names that users know: secondary shards are neighbours within a group of shards.
constexpr Named kNamed[] = {{"pp", {Dimension::kPipeline}},
                            {"dp", {Dimension::kReplica}},
                            {"shard", kShards},
                            {"tp", {Dimension::kTensor}}};

std::vector<Named> SpreadOf(const Mesh& mesh) {
  std::vector<Named> spread;
  for (const Named& named : kNamed) {
    if (mesh.SizeOf(named.along) > 1) spread.push_back(named);
  }
  return spread;
}

// "pp=0, dp=0-1": the coordinates of ranks [first, end).
std::string CoordinatesText(const Mesh& mesh, int first, int end) {
  std::vector<std::string> texts;
  for (const Named& named : SpreadOf(mesh)) {
    int low = mesh.IndexOf(first, named.along), high = low;
    for (int rank = first; rank < end; ++rank) {
      low = std::min(low, mesh.IndexOf(rank, named.along));
      high = std::max(high, mesh.IndexOf(rank, named.along));
    }
    texts.push_back(absl::StrCat(named.name, "=", low, low == high ? "" : absl::StrCat("-", high)));
  }
  return absl::StrJoin(texts, ", ");
}

// The most nodes that one group along these dimensions has ranks on.
int NodesOfGroup(const Mesh& mesh, Dimensions along, int ranks_of_node) {
  size_t most = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.FirstOf(rank, along) != rank) continue;
    std::set<int> nodes;
    for (const int member : mesh.RanksOf(rank, along)) nodes.insert(member / ranks_of_node);
    most = std::max(most, nodes.size());
  }
  return static_cast<int>(most);
}

}  // namespace

std::string SizesText(const Mesh& mesh) {
  const std::vector<Named> spread = SpreadOf(mesh);
  if (spread.empty()) return "dp=1";
  return absl::StrJoin(spread, " x ", [&](std::string* out, const Named& named) {
    absl::StrAppend(out, named.name, "=", mesh.SizeOf(named.along));
  });
}

absl::Status CheckReplicas(const Plan& plan, const Mesh& mesh, int64_t replicas) {
  const int64_t there = mesh.SizeOf(Dimension::kReplica);
  if (replicas == 0 || replicas == there) return absl::OkStatus();
  const int64_t of_place = mesh.replicas();
  const bool shards_all = plan.optimizer.placement == Placement::kShard && plan.shard_ranks == 0;
  std::string way = absl::StrCat("dp=", there, " fits, or leave it out");
  if (shards_all && of_place % replicas == 0) {
    way = absl::StrCat("plan ", plan.preset,
                       " shards over all of them: add shard=", of_place / replicas,
                       ", or leave dp out");
  }
  return FieldError("--mesh", absl::StrCat(": dp is ", replicas, ", and ", mesh.size(),
                                           " ranks lie over ", SizesText(mesh), "; ", way));
}

std::string MeshPage(const Mesh& mesh, int ranks_of_node) {
  const std::vector<Named> spread = SpreadOf(mesh);
  if (spread.size() < 2) return "";
  const int nodes = (mesh.size() + ranks_of_node - 1) / ranks_of_node;
  std::string page = absl::StrCat("\nmesh, ", SizesText(mesh), ":\n");
  for (int node = 0; node < std::min(nodes, kMostNodes); ++node) {
    const int first = node * ranks_of_node;
    const int end = std::min(first + ranks_of_node, mesh.size());
    ValueLine(page, absl::StrCat("node ", node),
              absl::StrCat("ranks ", first, "-", end - 1, ": ", CoordinatesText(mesh, first, end)));
  }
  if (nodes > kMostNodes) ValueLine(page, "", absl::StrCat("and ", nodes - kMostNodes, " more"));
  for (const Named& named : spread) {
    const int reached = NodesOfGroup(mesh, named.along, ranks_of_node);
    ValueLine(
        page, absl::StrCat("along ", named.name),
        absl::StrCat("groups of ", mesh.SizeOf(named.along), " ranks, each ",
                     reached == 1 ? "on one node" : absl::StrCat("over ", reached, " nodes")));
    if (named.along == Dimensions{Dimension::kTensor} && reached > 1) {
      ValueLine(page, "",
                "warning: they wait for each other four times in each layer, and networks between "
                "nodes are slow; a tp that divides the ranks of a node is faster");
    }
  }
  return page;
}

}  // namespace muster::plan
