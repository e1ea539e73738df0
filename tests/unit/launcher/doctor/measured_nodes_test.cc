#include "launcher/doctor/measured_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kTwo[] = R"({"cluster": {"worker": ["10.0.0.1:4000", "10.0.0.2:4001"]}})";

SchedulerFindings Step() {
  return {.scheduler = "Slurm",
          .options = {{"node_rank", "2", "SLURM_NODEID"}, {"rdzv_endpoint", "n1:61500", ""}},
          .nodes = {"n1", "n2", "n7"},
          .is_slurm = true};
}

TEST(FindMeasuredNodes, AreThoseOfAJobWithOneWorkerEach) {
  const MeasuredNodes job = FindMeasuredNodes(
      {{"RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}, {"TF_CONFIG", kTwo}}, SchedulerFindings());
  EXPECT_THAT(job.nodes, ElementsAre(Endpoint{"10.0.0.1", 4000}, Endpoint{"10.0.0.2", 4001}));
  EXPECT_EQ(job.self, 1);
}

TEST(FindMeasuredNodes, AreNotThoseOfOtherJobs) {
  const std::vector<EnvironmentMap> others = {
      {},
      {{"RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}},
      {{"RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"TF_CONFIG", kTwo}},
      {{"RANK", "2"}, {"LOCAL_WORLD_SIZE", "1"}, {"TF_CONFIG", kTwo}},
      {{"RANK", "-1"}, {"LOCAL_WORLD_SIZE", "1"}, {"TF_CONFIG", kTwo}},
      {{"RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"TF_CONFIG", R"({"cluster": 1})"}},
      {{"RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"TF_CONFIG", "]"}},
  };
  for (const EnvironmentMap& environment : others) {
    EXPECT_THAT(FindMeasuredNodes(environment, SchedulerFindings()).nodes, IsEmpty());
  }
}

TEST(FindMeasuredNodes, AreThoseOfAStepOverSeveralNodes) {
  const MeasuredNodes job = FindMeasuredNodes({}, Step());
  EXPECT_THAT(job.nodes,
              ElementsAre(Endpoint{"n1", 61500}, Endpoint{"n2", 61500}, Endpoint{"n7", 61500}));
  EXPECT_EQ(job.self, 2);
}

TEST(FindMeasuredNodes, AreNoneWhereASchedulerDoesNotTellThemAll) {
  SchedulerFindings without_names = Step();
  without_names.nodes.clear();
  SchedulerFindings alone = Step();
  alone.nodes.resize(1);
  SchedulerFindings without_rank = Step();
  without_rank.options.erase(without_rank.options.begin());
  SchedulerFindings of_a_shell = Step();
  of_a_shell.is_slurm = false;
  SchedulerFindings unplaced = Step();
  unplaced.unplaced = absl::InvalidArgumentError("it does not say how many nodes it has");
  for (const SchedulerFindings& one : {without_names, alone, without_rank, of_a_shell, unplaced}) {
    EXPECT_THAT(FindMeasuredNodes({}, one).nodes, IsEmpty());
  }
}

}  // namespace
}  // namespace muster::launcher
