#include "worker_runtime/comm/agreed_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const OwnBackend kOnA = {.gpu = "GPU-a"};
const OwnBackend kOnB = {.gpu = "GPU-b"};
const OwnBackend kOnHost = {.hindrance = "has no GPU"};
const OwnBackend kWithoutNccl = {.gpu = "GPU-c", .hindrance = "has no NCCL (it is not there)"};

OwnBackend Told(const std::string& name, OwnBackend own = {}) {
  own.asked = name;
  return own;
}

// --- The decision

TEST(WhyNotNccl, IsNothingWhereEachRankHasAGpuOfItsOwn) {
  EXPECT_EQ(WhyNotNccl({kOnA, kOnB}), "");
  EXPECT_EQ(WhyNotNccl({kOnA}), "");
  std::vector<OwnBackend> many;
  for (int i = 0; i < 64; ++i) many.push_back({.gpu = absl::StrCat("GPU-", i)});
  EXPECT_EQ(WhyNotNccl(many), "");
}

TEST(WhyNotNccl, NamesRanksThatShareAGpuAndWhatToDo) {
  EXPECT_THAT(WhyNotNccl({kOnA, kOnB, kOnA}),
              AllOf(StartsWith("ranks 0 and 2 of 3 share GPU-a, and NCCL has one rank for each"),
                    HasSubstr("--nproc_per_node=gpu"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(WhyNotNccl, NamesTwoGpusWhereManyAreShared) {
  std::vector<OwnBackend> ranks;
  for (int i = 0; i < 16; ++i) ranks.push_back({.gpu = absl::StrCat("GPU-", i % 8)});
  EXPECT_THAT(WhyNotNccl(ranks), AllOf(HasSubstr("ranks 0 and 8 of 16 share GPU-0"),
                                       HasSubstr("ranks 1 and 9 of 16 share GPU-1"),
                                       HasSubstr("6 more are shared"), Not(HasSubstr("GPU-2"))));
}

TEST(WhyNotNccl, NamesTheRankThatCannotHaveIt) {
  EXPECT_EQ(WhyNotNccl({kOnA, kOnHost, kOnA}), "rank 1 has no GPU");
  EXPECT_EQ(WhyNotNccl({kOnA, kWithoutNccl}), "rank 1 has no NCCL (it is not there)");
  EXPECT_EQ(WhyNotNccl({kOnA, Told("gloo", kOnB)}), "rank 1 was told gloo");
}

TEST(WhyNotNccl, DoesNotCompareGpusThatAreNotKnown) {
  EXPECT_EQ(WhyNotNccl({Told("nccl"), Told("nccl")}), "");
}

// --- The meeting

struct Outcome {
  std::string name;  // or the failure
  std::string note;
};

MeetingOptions Meeting(int rank, int size, absl::Duration patience) {
  return {.rank = rank,
          .size = size,
          .group = "world",
          .prefix = "test",
          .deadline = MonoNow() + patience};
}

// What each rank comes to, a thread each.
std::vector<Outcome> Agree(const std::vector<OwnBackend>& ranks) {
  MemoryStore store;
  const int size = static_cast<int>(ranks.size());
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto agreed = AgreeOnBackend(store, Meeting(rank, size, absl::Minutes(2)), ranks[rank]);
      outcomes[rank] = agreed.ok() ? Outcome{agreed->name, agreed->note}
                                   : Outcome{std::string(agreed.status().message()), ""};
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<std::string> NamesOf(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> names;
  for (const Outcome& outcome : outcomes) names.push_back(outcome.name);
  return names;
}

TEST(AgreeOnBackend, IsNcclWhereEachRankHasAGpuOfItsOwn) {
  std::vector<OwnBackend> ranks;
  for (int i = 0; i < 24; ++i) ranks.push_back({.gpu = absl::StrCat("GPU-", i)});
  const std::vector<Outcome> outcomes = Agree(ranks);
  EXPECT_THAT(NamesOf(outcomes), Each("nccl"));
  EXPECT_EQ(outcomes[0].note, "");
}

TEST(AgreeOnBackend, IsGlooForAllWhereTwoRanksShareAGpu) {
  const std::vector<Outcome> outcomes = Agree({kOnA, kOnB, kOnB});
  EXPECT_THAT(NamesOf(outcomes), Each("gloo"));
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.note, StartsWith("gloo instead of nccl: ranks 1 and 2 of 3 share GPU-b"));
  }
}

TEST(AgreeOnBackend, IsGlooForAllWhereOneRankCannotHaveNccl) {
  EXPECT_THAT(NamesOf(Agree({kOnA, kOnB, kWithoutNccl})), Each("gloo"));
  EXPECT_THAT(NamesOf(Agree({kWithoutNccl, kOnA, kOnB})), Each("gloo"));
  EXPECT_THAT(NamesOf(Agree({kOnHost, kOnA})), Each("gloo"));
  EXPECT_EQ(Agree({kOnA, kOnHost})[0].note, "gloo instead of nccl: rank 1 has no GPU");
}

TEST(AgreeOnBackend, HasNothingToSayToRanksOnTheHost) {
  EXPECT_EQ(Agree({kOnHost, kOnHost})[0].note, "");
}

TEST(AgreeOnBackend, RefusesNcclByNameToRanksThatShareAGpuBeforeNcclIsAsked) {
  EXPECT_THAT(NamesOf(Agree({Told("nccl", kOnA), Told("nccl", kOnA)})),
              Each(AllOf(StartsWith("backend nccl: ranks 0 and 1 of 2 share GPU-a"),
                         EndsWith("backend gloo works on all ranks"))));
  EXPECT_THAT(NamesOf(Agree({Told("nccl", kOnA), Told("nccl", kOnB)})), Each("nccl"));
  // What NCCL is left to judge by itself.
  EXPECT_THAT(NamesOf(Agree({Told("nccl"), Told("nccl")})), Each("nccl"));
}

TEST(AgreeOnBackend, TellsRanksThatWereToldOtherThings) {
  EXPECT_THAT(NamesOf(Agree({kOnA, Told("gloo", kOnB)})), Each("gloo"));
  EXPECT_THAT(NamesOf(Agree({Told("gloo", kOnA), kOnB})), Each("gloo"));
  EXPECT_THAT(NamesOf(Agree({Told("nccl", kOnA), kOnB})), Each("nccl"));
  EXPECT_THAT(
      NamesOf(Agree({Told("gloo"), Told("nccl", kOnA)})),
      ElementsAre("gloo", "backend nccl: rank 0 was told gloo; backend gloo works on all ranks"));
}

TEST(AgreeOnBackend, LeavesWhatARankItselfLacksToTheBackEndThatItWasTold) {
  EXPECT_THAT(NamesOf(Agree({Told("nccl", kWithoutNccl), Told("nccl", kOnA)})),
              ElementsAre("nccl", HasSubstr("rank 0 has no NCCL (it is not there)")));
}

TEST(AgreeOnBackend, LetsARankThatKnowsTheEndWaitForNobody) {
  MemoryStore store;
  for (const int rank : {0, 1}) {
    for (const OwnBackend& own : {kOnHost, Told("gloo"), kWithoutNccl}) {
      const auto agreed = AgreeOnBackend(store, Meeting(rank, 2, absl::Minutes(10)), own);
      ASSERT_TRUE(agreed.ok());
      EXPECT_EQ(agreed->name, "gloo");
    }
  }
}

TEST(AgreeOnBackend, NamesTheRankThatDoesNotCome) {
  MemoryStore store;
  const auto names_rank_one =
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               HasSubstr("rank 1 of 2 did not come to group world; rank 0 waited"));
  EXPECT_THAT(AgreeOnBackend(store, Meeting(0, 2, absl::Milliseconds(1)), kOnA).status(),
              names_rank_one);
  // It comes too late, and is told so.
  EXPECT_THAT(AgreeOnBackend(store, Meeting(1, 2, absl::Minutes(1)), kOnB).status(),
              names_rank_one);
}

TEST(AgreeOnBackend, NamesRankZeroWhereItDoesNotCome) {
  MemoryStore store;
  EXPECT_THAT(AgreeOnBackend(store, Meeting(1, 2, absl::Milliseconds(1)), kOnA).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 of 2 did not come to group world")));
}

// Another version of this program, for one.
TEST(AgreeOnBackend, DoesNotTrustWhatItCannotRead) {
  MemoryStore store;
  ASSERT_TRUE(store.Set("test/meeting/rank1", "?", MonoNow() + absl::Minutes(1)).ok());
  const auto agreed = AgreeOnBackend(store, Meeting(0, 2, absl::Minutes(1)), kOnA);
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->note, "gloo instead of nccl: rank 1 says '?' of its back end");
}

}  // namespace
}  // namespace muster::comm
