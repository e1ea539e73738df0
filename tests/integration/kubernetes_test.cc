// The manifests of deploy/k8s run as they stand, in namespaces in the place of a cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/kubernetes_pods.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Leaves a mark of its rank and the number of ranks, and trains until there is $OUT/done.
constexpr char kTrains[] = R"(
import os, time
mark = "{RANK}.{WORLD_SIZE}".format(**os.environ)
open(os.environ["OUT"] + "/" + mark, "w").close()
while not os.path.exists(os.environ["OUT"] + "/done"):
    time.sleep(0.05)
)";

constexpr char kTrainsOnTheSecondAttempt[] = R"(
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
)";

class Kubernetes : public PodsInNamespaces {
 protected:
  std::vector<Subprocess> StartAll(size_t num_pods, size_t first = 0) const {
    std::vector<Subprocess> containers;
    for (size_t pod = first; pod < num_pods; ++pod) containers.push_back(StartContainer(pod));
    return containers;
  }
  ::testing::AssertionResult AllRun(int world_size) const {
    for (int rank = 0; rank < world_size; ++rank) {
      const std::string name = absl::StrCat(rank, ".", world_size);
      if (WaitUntil([&] { return FileExists(Out(name)); }, kPodPatience)) continue;
      return ::testing::AssertionFailure() << name << " did not start";
    }
    return ::testing::AssertionSuccess();
  }
  void ExpectThatAllTrain(std::vector<Subprocess>& containers) const {
    WriteFile(Out("done"), "");
    for (Subprocess& one : containers) EXPECT_THAT(one.Wait(kPodPatience), ExitsWith(0));
  }
  void ForgetMarks() const {
    for (const std::string& file : FilesBelow(out())) unlink(Out(file).c_str());
  }
};

// Every manifest names the secret that the guide makes, and mounts it as a file.
TEST(Manifests, MountTheSecretOfTheGuide) {
  EXPECT_THAT(ReadFile(absl::StrCat(kSourceDirectory, "/deploy/docs/kubernetes.md")),
              HasSubstr("kubectl create secret generic muster --from-literal=token="));
  for (const std::string& file : FilesBelow(absl::StrCat(kSourceDirectory, "/deploy/k8s"))) {
    for (const Pod& pod : PodsOf(file)) {
      std::vector<std::string> secrets;
      for (const PodMount& mount : pod.mounts) {
        if (!mount.secret.empty()) secrets.push_back(mount.secret);
      }
      EXPECT_THAT(secrets, ElementsAre("muster")) << file;
    }
  }
}

TEST_F(Kubernetes, RunsAnIndexedJobAndRestartsItsWorkersInTheirPods) {
  const std::vector<Pod> pods = PodsOf("job.yaml");
  ASSERT_EQ(pods.size(), 2u);
  Place(pods, kTrainsOnTheSecondAttempt);
  std::vector<Subprocess> containers = StartAll(pods.size());
  for (Subprocess& one : containers) {
    const SubprocessResult result = one.Wait(kPodPatience);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr(" of 2"));
  }
}

TEST_F(Kubernetes, RunsASetOfJobsAsOneJob) {
  const std::vector<Pod> pods = PodsOf("jobset.yaml");
  ASSERT_EQ(pods.size(), 2u);
  Place(pods, kTrains);
  std::vector<Subprocess> containers = StartAll(pods.size());
  ASSERT_TRUE(AllRun(2));
  ExpectThatAllTrain(containers);
}

// The set's controller restarts the containers of all pods where one has ended with a code that its
// rules name; a container that is killed ends with 137.
TEST_F(Kubernetes, StartsASetAgainInItsPods) {
  const std::string file = "jobset-in-place.yaml";
  const std::vector<Pod> pods = PodsOf(file);
  ASSERT_EQ(pods.size(), 2u);
  Place(pods, kTrains);
  std::vector<Subprocess> containers = StartAll(pods.size());
  ASSERT_TRUE(AllRun(2));
  ASSERT_TRUE(RestartsAllContainers(file, 128 + SIGKILL));
  for (Subprocess& one : containers) KillContainer(one);
  ForgetMarks();

  std::vector<Subprocess> again = StartAll(pods.size());

  ASSERT_TRUE(AllRun(2));
  ExpectThatAllTrain(again);
  EXPECT_FALSE(RestartsAllContainers(file, 0));
  EXPECT_FALSE(RestartsAllContainers(file, 2)) << "a wrong command line stays wrong";
  EXPECT_FALSE(RestartsAllContainers(file, 93)) << "the program forbids a restart";
}

// Pods of musterd.yaml first, then those of an elastic job. One pod is lost, and its replacement
// comes by the same name.
class ElasticKubernetes : public Kubernetes, public ::testing::WithParamInterface<std::string> {};

TEST_P(ElasticKubernetes, LosesAPodAndTakesItsReplacementIn) {
  std::vector<Pod> pods = PodsOf("musterd.yaml");
  for (const Pod& pod : PodsOf(GetParam())) pods.push_back(pod);
  ASSERT_EQ(pods.size(), 5u);
  Place(pods, kTrains);
  Subprocess daemon = StartContainer(0);
  EXPECT_TRUE(WaitUntil([&] { return IsReady(0); }, kPodPatience));
  std::vector<Subprocess> containers = StartAll(pods.size(), 1);
  ASSERT_TRUE(AllRun(4));
  ForgetMarks();  // those of a first round without the last, too

  KillContainer(containers.back());
  containers.pop_back();
  ASSERT_TRUE(AllRun(3)) << "the others go on";
  ForgetMarks();
  containers.push_back(StartContainer(pods.size() - 1));
  ASSERT_TRUE(AllRun(4)) << "with the replacement";

  ExpectThatAllTrain(containers);
  KillContainer(daemon);
}

// The job must not be complete by a pod that leaves it.
TEST_P(ElasticKubernetes, DrainsAPodAndTakesItsReplacementIn) {
  constexpr int kLeft = 76;
  std::vector<Pod> pods = PodsOf("musterd.yaml");
  for (const Pod& pod : PodsOf(GetParam())) pods.push_back(pod);
  ASSERT_EQ(pods.size(), 5u);
  Place(pods, kTrains);
  Subprocess daemon = StartContainer(0);
  std::vector<Subprocess> containers = StartAll(pods.size(), 1);
  ASSERT_TRUE(AllRun(4));
  ForgetMarks();

  const auto is_id = [](const std::string& word) { return absl::StartsWith(word, "--rdzv_id="); };
  const Arguments& command = pods.back().command;
  const auto id = std::find_if(command.begin(), command.end(), is_id);
  ASSERT_NE(id, command.end());
  EXPECT_THAT(RunInPod(pods.size() - 1,
                       {"drain", "--now", "--rdzv_endpoint=musterd:29400", *id, pods.back().name}),
              ExitsWith(0));
  EXPECT_THAT(containers.back().Wait(kPodPatience), ExitsWith(kLeft));
  containers.pop_back();
  EXPECT_TRUE(EndsJob(GetParam(), 0));
  EXPECT_TRUE(EndsJob(GetParam(), 2));
  EXPECT_FALSE(EndsJob(GetParam(), kLeft)) << "another pod follows";
  ASSERT_TRUE(AllRun(3)) << "the others go on";
  ForgetMarks();
  containers.push_back(StartContainer(pods.size() - 1));
  ASSERT_TRUE(AllRun(4)) << "with the replacement";

  ExpectThatAllTrain(containers);
  KillContainer(daemon);
}

INSTANTIATE_TEST_SUITE_P(Manifests, ElasticKubernetes,
                         ::testing::Values("job-elastic.yaml", "jobset-elastic.yaml"),
                         [](const auto& info) {
                           return std::string(info.param == "job-elastic.yaml" ? "Job" : "JobSet");
                         });

}  // namespace
}  // namespace muster::testing
