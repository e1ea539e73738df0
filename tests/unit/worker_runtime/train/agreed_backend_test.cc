#include "worker_runtime/train/agreed_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What each rank of a job comes to, a thread each.
std::vector<std::string> Agreed(std::vector<OwnBackend> ranks) {
  comm::MemoryStore store;
  std::vector<std::string> agreed(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].rank = static_cast<int>(i);
    ranks[i].size = static_cast<int>(ranks.size());
    threads.emplace_back([&store, own = ranks[i], &to = agreed[i]] {
      const auto name = AgreeOnBackend(store, own, MonoNow() + absl::Minutes(1));
      to = name.ok() ? *name : std::string(name.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return agreed;
}

TEST(AgreeOnBackend, IsNcclWhereEachRankHasAGpuOfItsOwn) {
  EXPECT_THAT(Agreed({{.name = "nccl"}, {.name = "nccl"}, {.name = "nccl"}}), Each("nccl"));
}

TEST(AgreeOnBackend, IsGlooForAllWhereOneRankSharesItsGpu) {
  EXPECT_THAT(Agreed({{.name = "nccl"}, {.name = "nccl"}, {.name = "gloo"}}), Each("gloo"));
  EXPECT_THAT(Agreed({{.name = "gloo"}, {.name = "nccl"}}), Each("gloo"));
}

TEST(AgreeOnBackend, LeavesARankAtWhatItWasToldAndWaitsForNobodyThere) {
  EXPECT_THAT(Agreed({{.name = "nccl", .follows = false}, {.name = "gloo", .follows = false}}),
              ElementsAre("nccl", "gloo"));
  comm::MemoryStore store;
  EXPECT_THAT(AgreeOnBackend(store, {.rank = 1, .size = 2, .name = "gloo", .follows = false},
                             MonoNow() + absl::Minutes(1)),
              IsOkAndHolds("gloo"));
}

TEST(AgreeOnBackend, AsksNobodyWhereThereIsOneRank) {
  comm::MemoryStore store;
  EXPECT_THAT(AgreeOnBackend(store, {.name = "nccl"}, MonoNow()), IsOkAndHolds("nccl"));
}

TEST(AgreeOnBackend, NamesTheRankThatDoesNotCome) {
  comm::MemoryStore store;
  const MonoTime soon = MonoNow() + absl::Milliseconds(1);
  EXPECT_THAT(AgreeOnBackend(store, {.rank = 0, .size = 3, .name = "nccl"}, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 has not said")));
  EXPECT_THAT(AgreeOnBackend(store, {.rank = 2, .size = 3, .name = "nccl"}, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 has not said")));
}

}  // namespace
}  // namespace muster::train
