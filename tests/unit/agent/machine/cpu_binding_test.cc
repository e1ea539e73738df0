#include "agent/machine/cpu_binding.h"

#include <sched.h>

#include <set>
#include <string>
#include <vector>

#include "agent/machine/cpu_topology.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Cpus = std::vector<std::vector<int>>;

struct Shape {
  int sockets = 1;
  int nodes_per_socket = 1;
  int complexes_per_node = 1;
  int cores_per_complex = 1;
};

// Core i has the hardware threads i and i + number of cores, as Linux numbers them.
Topology MakeTopology(const Shape& shape) {
  const int num_cores =
      shape.sockets * shape.nodes_per_socket * shape.complexes_per_node * shape.cores_per_complex;
  Topology topology;
  for (int i = 0; i < num_cores; ++i) {
    const int complex = i / shape.cores_per_complex;
    const int node = complex / shape.complexes_per_node;
    topology.cores.push_back({{i, i + num_cores}, node, node / shape.nodes_per_socket, complex});
  }
  return topology;
}

// Two sockets of two nodes of two core complexes of two cores: 16 cores, CPUs 0-31.
const Topology kServer = MakeTopology({2, 2, 2, 2});

TEST(AssignCpus, BindsNothingUnlessAsked) {
  EXPECT_THAT(*AssignCpus(kServer, {.num_workers = 2}), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(AssignCpus, GivesTheWholeNodeOfTheGpu) {
  const CpuRequest request{
      .binding = NumaBinding::kNode, .num_workers = 2, .gpu_numa_nodes = {3, 0}};
  EXPECT_EQ(*AssignCpus(kServer, request),
            (Cpus{{12, 13, 14, 15, 28, 29, 30, 31}, {0, 1, 2, 3, 16, 17, 18, 19}}));
}

TEST(AssignCpus, SpreadsWorkersWithoutGpusOverNodesInBlocks) {
  const Topology two_nodes = MakeTopology({2, 1, 1, 1});
  EXPECT_EQ(*AssignCpus(two_nodes, {.binding = NumaBinding::kNode, .num_workers = 4}),
            (Cpus{{0, 2}, {0, 2}, {1, 3}, {1, 3}}));
}

TEST(AssignCpus, SpreadsFewWorkersOverDistantNodes) {
  const absl::StatusOr<Cpus> cpus =
      AssignCpus(kServer, {.binding = NumaBinding::kNode, .num_workers = 2});
  EXPECT_EQ((*cpus)[0].front(), 0);
  EXPECT_EQ((*cpus)[1].front(), 8);
}

TEST(AssignCpus, SpreadsWhenTheNodeOfAGpuIsNotKnown) {
  const CpuRequest request{
      .binding = NumaBinding::kNode, .num_workers = 2, .gpu_numa_nodes = {-1, 0}};
  EXPECT_EQ(*AssignCpus(MakeTopology({2, 1, 1, 1}), request), (Cpus{{0, 2}, {1, 3}}));
}

TEST(AssignCpus, GivesTheWholeSocketOfTheGpusNode) {
  const CpuRequest request{
      .binding = NumaBinding::kSocket, .num_workers = 1, .gpu_numa_nodes = {3}};
  EXPECT_EQ(*AssignCpus(kServer, request),
            (Cpus{{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}}));
}

TEST(AssignCpus, SharesCoresOutWithoutOverlap) {
  const CpuRequest request{
      .binding = NumaBinding::kExclusive, .num_workers = 3, .gpu_numa_nodes = {0, 0, 0}};
  EXPECT_EQ(*AssignCpus(kServer, request), (Cpus{{0, 16}, {1, 17}, {2, 3, 18, 19}}));
}

TEST(AssignCpus, SharesANodeOnlyAmongItsOwnWorkers) {
  const CpuRequest request{
      .binding = NumaBinding::kExclusive, .num_workers = 3, .gpu_numa_nodes = {0, 1, 0}};
  EXPECT_EQ(*AssignCpus(kServer, request),
            (Cpus{{0, 1, 16, 17}, {4, 5, 6, 7, 20, 21, 22, 23}, {2, 3, 18, 19}}));
}

TEST(AssignCpus, RefusesMoreExclusiveWorkersThanCores) {
  const CpuRequest request{.binding = NumaBinding::kExclusive, .num_workers = 3};
  const absl::Status status = AssignCpus(MakeTopology({1, 1, 1, 2}), request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("2 physical cores"), HasSubstr("3 workers")));
}

TEST(AssignCpus, GivesEachWorkerACoreComplexOfItsOwn) {
  const CpuRequest request{
      .binding = NumaBinding::kCoreComplex, .num_workers = 2, .gpu_numa_nodes = {1, 1}};
  EXPECT_EQ(*AssignCpus(kServer, request), (Cpus{{4, 5, 20, 21}, {6, 7, 22, 23}}));
}

TEST(AssignCpus, GivesCoreComplexesAgainWhenTheyRunOut) {
  const CpuRequest request{
      .binding = NumaBinding::kCoreComplex, .num_workers = 3, .gpu_numa_nodes = {1, 1, 1}};
  const absl::StatusOr<Cpus> cpus = AssignCpus(kServer, request);
  EXPECT_EQ((*cpus)[2], (*cpus)[0]);
}

TEST(AssignCpus, GivesTheLargestCoreComplexFirst) {
  const Topology topology{{{{0}, 0, 0, 0}, {{1}, 0, 0, 1}, {{2}, 0, 0, 1}}};
  EXPECT_EQ(*AssignCpus(topology, {.binding = NumaBinding::kCoreComplex}), (Cpus{{1, 2}}));
}

TEST(AssignCpus, NamesTheNodeOfAGpuThatHasNoUsableCpu) {
  const CpuRequest request{.binding = NumaBinding::kNode, .num_workers = 1, .gpu_numa_nodes = {7}};
  const absl::Status status = AssignCpus(kServer, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("local rank 0"), HasSubstr("NUMA node 7")));
}

TEST(ReadTopology, ListsEachUsableCpuOnce) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  std::multiset<int> cpus;
  for (const Core& core : topology->cores) cpus.insert(core.cpus.begin(), core.cpus.end());
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&usable));
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size());
}

TEST(ReadTopology, CanBeBoundToByEveryKind) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  for (const NumaBinding binding : {NumaBinding::kNode, NumaBinding::kSocket,
                                    NumaBinding::kExclusive, NumaBinding::kCoreComplex}) {
    const absl::StatusOr<Cpus> cpus = AssignCpus(*topology, {.binding = binding, .num_workers = 1});
    ASSERT_TRUE(cpus.ok()) << cpus.status();
    EXPECT_THAT(*cpus, Each(::testing::Not(IsEmpty())));
  }
}

}  // namespace
}  // namespace muster::agent
