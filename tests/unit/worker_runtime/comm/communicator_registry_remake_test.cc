// A group in the next round of a job, for ranks that were in it and ranks that were not: made by
// the registry, as a program's runtime does it. Of the back ends that run without a GPU; nccl's is
// tests/gpu/nccl_communicator_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/communicator_registry.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::HasStatusCode;
using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Owned = std::unique_ptr<Communicator>;

class Remade : public ::testing::TestWithParam<bool> {
 protected:
  BackendRequest Request(int rank, int size, std::shared_ptr<Store> store) {
    BackendRequest request;
    request.membership = {.group = "dp", .rank = rank, .size = size};
    request.membership.options.shared_memory = GetParam();
    request.store = std::move(store);
    request.prefix = "comm/dp/0";
    request.gloo_interfaces = "lo";
    request.others_may_have_former = true;
    return request;
  }
  // Returns when all have it and are connected: nobody lets go of it before, and all notice when
  // one does.
  Owned Make(int rank, int size) {
    auto made = MakeCommunicator("gloo", Request(rank, size, first_));
    EXPECT_THAT(made, IsOk());
    if (made.ok()) {
      EXPECT_THAT((*made)->Barrier().Wait(), IsOk());
    }
    const MonoTime deadline = MonoNow() + absl::Minutes(2);
    EXPECT_THAT(first_->Set(absl::StrCat("made", rank), "", deadline), IsOk());
    for (int other = 0; other < size; ++other) {
      EXPECT_THAT(first_->Wait(absl::StrCat("made", other), deadline), IsOk());
    }
    return made.ok() ? *std::move(made) : nullptr;
  }
  // Remakes it in the next round, whose store is another.
  Owned Remake(Owned former, int rank, int size) {
    BackendRequest request = Request(rank, size, next_);
    request.former = std::move(former);
    auto made = request.former == nullptr ? MakeCommunicator("gloo", std::move(request))
                                          : RemakeCommunicator(std::move(request));
    EXPECT_THAT(made, IsOk());
    return made.ok() ? *std::move(made) : nullptr;
  }

  static void OnThreads(int count, const std::function<void(int index)>& program) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back([&, i] { program(i); });
    for (std::thread& thread : threads) thread.join();
  }

  const std::shared_ptr<Store> first_ = std::make_shared<MemoryStore>();
  const std::shared_ptr<Store> next_ = std::make_shared<MemoryStore>();
};

INSTANTIATE_TEST_SUITE_P(Gloo, Remade, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "memory" : "tcp"; });

// Every way to meet: a sum, a transfer around the ring, and a group split off.
void ExpectWorks(Communicator& c, int rank, int size) {
  EXPECT_EQ(c.group(), "dp");
  ASSERT_EQ(c.rank(), rank);
  ASSERT_EQ(c.size(), size);
  for (const int64_t count : {1, 100'000}) {
    std::vector<int64_t> sum(count, int64_t{1} << (8 * rank));
    ASSERT_THAT(c.AllReduce(BufferOf(sum)).Wait(), IsOk());
    EXPECT_THAT(sum, Each((int64_t{1} << (8 * size)) / 255));  // 1 + 256 + 65536 + …
  }
  std::vector<int32_t> out = {rank}, in = {-1};
  const Work recv = c.Recv(BufferOf(in), (rank + size - 1) % size);
  const Work send = c.Send(ConstBufferOf(out), (rank + 1) % size);
  ASSERT_THAT(recv.Wait(), IsOk());
  ASSERT_THAT(send.Wait(), IsOk());
  EXPECT_EQ(in[0], (rank + size - 1) % size);
  const auto child = c.Split(0, -rank);
  ASSERT_THAT(child, IsOk());
  EXPECT_EQ((*child)->rank(), size - 1 - rank);
  EXPECT_THAT((*child)->Barrier().Wait(), IsOk());
  EXPECT_THAT(c.Barrier().Wait(), IsOk());
}

TEST_P(Remade, ThreeOfFourGoOnWhereOneHasLeft) {
  OnThreads(4, [this](int rank) {
    Owned c = Make(rank, 4);
    ASSERT_NE(c, nullptr);
    if (rank == 1) return;
    // What is in flight when it goes.
    std::vector<float> sum(50'000), got(10);
    const std::vector<Work> work = {c->AllReduce(BufferOf(sum)), c->Barrier(),
                                    c->Recv(BufferOf(got), 1)};
    for (const Work& each : work) {
      EXPECT_THAT(each.Wait(), AnyOf(HasStatusCode(absl::StatusCode::kAborted),
                                     HasStatusCode(absl::StatusCode::kUnavailable)));
    }
    const int now = rank == 0 ? 0 : rank - 1;
    c = Remake(std::move(c), now, 3);
    ASSERT_NE(c, nullptr);
    ExpectWorks(*c, now, 3);
  });
}

TEST_P(Remade, ANewRankTakesThePlaceOfOneThatIsGone) {
  OnThreads(5, [this](int index) {
    const bool is_new = index == 4;
    Owned c = is_new ? nullptr : Make(index, 4);
    if (!is_new) {
      ASSERT_NE(c, nullptr);
      if (index == 0) return;
      EXPECT_FALSE(c->Barrier().Wait().ok());
    }
    const int now = is_new ? 0 : index;
    c = Remake(std::move(c), now, 4);
    ASSERT_NE(c, nullptr);
    ExpectWorks(*c, now, 4);
  });
}

TEST_P(Remade, RanksMayChangePlaces) {
  OnThreads(3, [this](int rank) {
    Owned c = Make(rank, 3);
    ASSERT_NE(c, nullptr);
    c = Remake(std::move(c), 2 - rank, 3);
    ASSERT_NE(c, nullptr);
    ExpectWorks(*c, 2 - rank, 3);
  });
}

// Nothing has failed: the group is given up, with calls that others never make.
TEST_P(Remade, CallsOfAGroupThatIsGivenUpAreAborted) {
  OnThreads(3, [this](int rank) {
    Owned c = Make(rank, 3);
    ASSERT_NE(c, nullptr);
    std::vector<float> sum(50'000), got(10);
    const Work reduce = rank == 0 ? c->AllReduce(BufferOf(sum)) : Work();
    const Work recv = c->Recv(BufferOf(got), (rank + 1) % 3);
    c = Remake(std::move(c), rank, 3);
    ASSERT_NE(c, nullptr);
    EXPECT_THAT(recv.Wait(), HasStatusCode(absl::StatusCode::kAborted));
    if (rank == 0) {
      EXPECT_THAT(reduce.Wait(), HasStatusCode(absl::StatusCode::kAborted));
    }
    ExpectWorks(*c, rank, 3);
  });
}

TEST_P(Remade, AGroupShrinksToOneAndGrowsAgain) {
  std::barrier one_is_gone(2);
  OnThreads(2, [&](int rank) {
    Owned c = Make(rank, 2);
    ASSERT_NE(c, nullptr);
    if (rank == 1) c.reset();
    one_is_gone.arrive_and_wait();
    if (rank == 0) {
      auto request = Request(0, 1, std::make_shared<MemoryStore>());
      request.former = std::move(c);
      auto alone = RemakeCommunicator(std::move(request));
      ASSERT_THAT(alone, IsOk());
      EXPECT_THAT((*alone)->Barrier().Wait(), IsOk());
      c = *std::move(alone);
    }
    c = Remake(std::move(c), rank, 2);
    ASSERT_NE(c, nullptr);
    ExpectWorks(*c, rank, 2);
  });
}

TEST_P(Remade, OnlyFromWhatWasMadeForTheWholeGroup) {
  OnThreads(2, [this](int rank) {
    Owned c = Make(rank, 2);
    ASSERT_NE(c, nullptr);
    auto child = c->Split(0, rank);
    ASSERT_THAT(child, IsOk());
    ASSERT_THAT((*child)->Barrier().Wait(), IsOk());
    ASSERT_THAT(c->Barrier().Wait(), IsOk());
    BackendRequest request = Request(rank, 2, next_);
    request.former = *std::move(child);
    EXPECT_THAT(RemakeCommunicator(std::move(request)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("group dp"), HasSubstr("a communicator of Split's"))));
  });
  EXPECT_THAT(RemakeCommunicator(Request(0, 2, next_)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from nothing")));
}

}  // namespace
}  // namespace muster::comm
