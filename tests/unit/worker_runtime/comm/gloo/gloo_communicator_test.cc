// Ranks over shared memory, and over TCP, meet the contract of Communicator. Each has an I/O
// thread, a segment and connections of its own, as a process would.
#include "worker_runtime/comm/gloo/gloo_communicator.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_data.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_failures.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

std::unique_ptr<Communicator> Join(Membership membership, std::shared_ptr<Store> store) {
  auto device = OpenGlooDevice("127.0.0.1", "lo");
  EXPECT_THAT(device, IsOk());
  auto communicator =
      GlooCommunicator::Make(std::move(membership), *device, std::move(store), "test");
  EXPECT_THAT(communicator, IsOk());
  return communicator.ok() ? *std::move(communicator) : nullptr;
}

std::vector<ContractBackend::Join> MakeGloo(int size, CommunicatorOptions options,
                                            bool shared_memory) {
  options.shared_memory = shared_memory;
  auto store = std::make_shared<MemoryStore>();
  std::vector<ContractBackend::Join> joins;
  for (int rank = 0; rank < size; ++rank) {
    joins.push_back([=] {
      return Join({.group = "world", .rank = rank, .size = size, .options = options}, store);
    });
  }
  return joins;
}

std::vector<ContractBackend::Join> MakeByMemory(int size, const CommunicatorOptions& options) {
  return MakeGloo(size, options, /*shared_memory=*/true);
}
std::vector<ContractBackend::Join> MakeByTcp(int size, const CommunicatorOptions& options) {
  return MakeGloo(size, options, /*shared_memory=*/false);
}
// Rank 0 alone on a machine.
std::vector<ContractBackend::Join> MakeMixed(int size, const CommunicatorOptions& options) {
  std::vector<ContractBackend::Join> joins(size);
  auto store = std::make_shared<MemoryStore>();
  for (int rank = 0; rank < size; ++rank) {
    CommunicatorOptions own = options;
    own.shared_memory = rank != 0;
    joins[rank] = [=] {
      return Join({.group = "world", .rank = rank, .size = size, .options = own}, store);
    };
  }
  return joins;
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContract,
                         ::testing::Values(ContractBackend{"memory", MakeByMemory},
                                           ContractBackend{"tcp", MakeByTcp},
                                           ContractBackend{"mixed", MakeMixed}),
                         [](const auto& info) { return info.param.name; });

void OnEachRank(int size, const std::function<void(Communicator&)>& program) {
  std::vector<ContractBackend::Join> joins = MakeByTcp(size, {});
  std::barrier<> all_done(size);
  std::vector<std::thread> threads;
  for (const ContractBackend::Join& join : joins) {
    threads.emplace_back([&] {
      const std::unique_ptr<Communicator> communicator = join();
      program(*communicator);
      all_done.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Some of 11 ranks are two hops apart on the control channel.
TEST(GlooControl, AnAbortReachesRanksThatAreNotConnected) {
  OnEachRank(11, [](Communicator& c) {
    if (c.rank() == 4) return c.Abort("enough");
    EXPECT_THAT(c.Barrier().Wait(),
                StatusIs(absl::StatusCode::kAborted,
                         HasSubstr("rank 4 of 11 aborted group world: enough")));
  });
}

TEST(GlooControl, AnswersComeBackFromRanksThatAreNotConnected) {
  OnEachRank(11, [](Communicator& c) {
    if (c.rank() == 6) return;
    EXPECT_THAT(c.Barrier({.timeout = absl::Milliseconds(400)}).Wait(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("rank 6 of 11 did not reach barrier #0 (group world) within "
                                   "400ms; it is alive and has called nothing yet")));
  });
}

TEST(GlooBootstrap, NamesTheRankThatNeverCameToTheOthersToo) {
  auto store = std::make_shared<MemoryStore>();
  const auto come = [&store](int rank) {
    auto device = OpenGlooDevice("127.0.0.1", "lo");
    ASSERT_THAT(device, IsOk());
    const Membership membership{.group = "dp",
                                .rank = rank,
                                .size = 3,
                                .options = {.connect_timeout = absl::Milliseconds(200)}};
    EXPECT_THAT(GlooCommunicator::Make(membership, *device, store, "test"),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("rank 1 of 3 did not come to group dp")));
  };
  std::thread other([&] { come(2); });
  come(0);
  other.join();
}

TEST(GlooBootstrap, NamesRankZeroWhereItNeverCame) {
  auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  const Membership membership{
      .group = "dp", .rank = 1, .size = 2, .options = {.connect_timeout = absl::Milliseconds(200)}};
  EXPECT_THAT(GlooCommunicator::Make(membership, *device, std::make_shared<MemoryStore>(), "test"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 of 2 did not come to group dp")));
}

TEST(GlooBootstrap, NamesTheRankThatNeverCame) {
  auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  const Membership membership{
      .group = "dp", .rank = 0, .size = 2, .options = {.connect_timeout = absl::Milliseconds(200)}};
  EXPECT_THAT(GlooCommunicator::Make(membership, *device, std::make_shared<MemoryStore>(), "test"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 of 2 did not come to group dp")));
}

}  // namespace
}  // namespace muster::comm
