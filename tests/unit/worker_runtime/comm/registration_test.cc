// Memory that is registered with a communicator: on an emulated GPU, by a backend that is as strict
// as NCCL's guide.
#include "muster/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/communicator.h"
#include "muster/tensor.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/nn/operations.h"

namespace muster::comm {
namespace {

using testing::EmulatedCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeLateDevice;
using testing::MakeStreamCommunicators;
using testing::StatusIs;

constexpr int64_t kCount = 3000;  // of floats: more than a page

Buffer BufferOfTensor(const Tensor& x) { return {x.raw_data(), x.num_elements(), x.dtype()}; }

// One rank, its device and arrays there.
class Rank {
 public:
  Rank(std::unique_ptr<Communicator> communicator, const Device& device, std::barrier<>& all)
      : owned(std::move(communicator)),
        world(*owned),
        all(all),
        pool_(device),
        queue(device, &pool_) {}

  std::unique_ptr<Communicator> owned;
  Communicator& world;
  std::barrier<>& all;  // where ranks wait for each other without a call

  Tensor Take(int64_t count = kCount) { return pool_.Allocate(DType::kF32, {count}); }
  void Fill(const Tensor& x, float value) {
    queue.device().operations(DType::kF32).fill(queue, value, x);
  }
  float Read(const Tensor& x) {
    std::vector<float> host(x.num_elements());
    EXPECT_THAT(queue.device().Download(queue, x.raw_data(), host.data(), x.num_bytes()), IsOk());
    for (const float each : host) EXPECT_EQ(each, host[0]);
    return host[0];
  }
  Work Sum(const Tensor& x) { return SumOf(world, x); }
  Work SumOf(Communicator& group, const Tensor& x) {
    return group.AllReduce(BufferOfTensor(x), {.queue = &queue});
  }
  Registration Register(const Tensor& x) {
    auto registration = world.Register(BufferOfTensor(x));
    EXPECT_THAT(registration, IsOk());
    EXPECT_FALSE(registration.ok() && registration->empty());
    return registration.ok() ? *std::move(registration) : Registration();
  }

 private:
  TensorPool pool_;

 public:
  Queue queue;
};

// What the device says in the end.
absl::Status OnRanks(int size, uint64_t seed, const std::function<void(Rank& on)>& body) {
  EmulatedCuda cuda({.seed = seed});
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = size});
    std::barrier<> all(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        Rank on(std::move(communicators[rank]), *device, all);
        body(on);
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return cuda.Finish();
}

TEST(Registration, IsGivenUpOnceByAnyHolder) {
  int given_up = 0;
  {
    Registration first([&given_up] { ++given_up; });
    EXPECT_FALSE(first.empty());
    Registration second = std::move(first);
    EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): it is of nothing
    EXPECT_EQ(given_up, 0);
    second = Registration([&given_up] { given_up += 10; });
    EXPECT_EQ(given_up, 1);
    Registration& same = second;
    second = std::move(same);
    EXPECT_FALSE(second.empty());
  }
  EXPECT_EQ(given_up, 11);
  EXPECT_TRUE(Registration().empty());
}

TEST(RegisteredMemory, IsWorkedInAsMemoryElsewhere) {
  for (const int size : {2, 3}) {
    EXPECT_THAT(OnRanks(size, 1,
                        [](Rank& on) {
                          const int n = on.world.size(), rank = on.world.rank();
                          // Every rank takes another size.
                          const Tensor all = on.Take((n + 1) * kCount + rank);
                          const Registration registration = on.Register(all);
                          const Tensor many = all.Slice(0, {n * kCount});
                          const Tensor one = all.Slice(n * kCount, {kCount});
                          on.Fill(one, static_cast<float>(rank + 1));
                          ASSERT_THAT(on.Sum(one).Await(on.queue), IsOk());
                          const float sum = n * (n + 1) / 2.0f;
                          EXPECT_EQ(on.Read(one), sum);
                          ASSERT_THAT(on.world
                                          .AllGather(BufferOfTensor(one), BufferOfTensor(many),
                                                     {.queue = &on.queue})
                                          .Await(on.queue),
                                      IsOk());
                          EXPECT_EQ(on.Read(many), sum);
                          ASSERT_THAT(on.world
                                          .ReduceScatter(BufferOfTensor(many), BufferOfTensor(one),
                                                         {.queue = &on.queue})
                                          .Await(on.queue),
                                      IsOk());
                          EXPECT_EQ(on.Read(one), n * sum);
                          on.Fill(one, static_cast<float>(rank));
                          ASSERT_THAT(
                              on.world.Broadcast(BufferOfTensor(one), n - 1, {.queue = &on.queue})
                                  .Await(on.queue),
                              IsOk());
                          EXPECT_EQ(on.Read(one), n - 1);
                        }),
                IsOk());
  }
}

TEST(RegisteredMemory, MayBeOfCapturedCalls) {
  EXPECT_THAT(OnRanks(2, 2,
                      [](Rank& on) {
                        const Tensor x = on.Take();
                        const Registration registration = on.Register(x);
                        ASSERT_THAT(on.world.BeginCapture(on.queue), IsOk());
                        EXPECT_THAT(on.Sum(x).Await(on.queue), IsOk());
                        auto captured = on.world.EndCapture(on.queue);
                        ASSERT_THAT(captured, IsOk());
                        on.Fill(x, 1);
                        for (int i = 0; i < 3; ++i) {
                          EXPECT_THAT((*captured)->Launch(on.queue).Wait(), IsOk());
                          EXPECT_THAT(on.Sum(x).Await(on.queue), IsOk());
                        }
                        EXPECT_EQ(on.Read(x), 64);
                      }),
              IsOk());
}

TEST(RegisteredMemory, IsNoRanksWhereOneCannotRegisterAndAllAreToldWhy) {
  std::vector<std::string> told(3);
  EXPECT_THAT(
      OnRanks(
          3, 3,
          [&told](Rank& on) {
            const int rank = on.world.rank();
            const Tensor x = on.Take(), other = on.Take();
            std::vector<float> of_the_host(kCount);
            const absl::Status status =
                on.world.Register(rank == 1 ? BufferOf(of_the_host) : BufferOfTensor(x)).status();
            EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("rank 1: the memory to register is not")));
            told[rank] = std::string(status.message());
            // A mixture, if one were left.
            const Tensor& used = rank == 0 ? x : other;
            on.Fill(used, 1);
            EXPECT_THAT(on.Sum(used).Await(on.queue), IsOk());
            EXPECT_EQ(on.Read(used), 3);
            // It can be tried again.
            const Registration registration = on.Register(x);
            on.Fill(x, 1);
            EXPECT_THAT(on.Sum(x).Await(on.queue), IsOk());
            EXPECT_EQ(on.Read(x), 3);
          }),
      IsOk());
  EXPECT_EQ(told[0], told[1]);
  EXPECT_EQ(told[2], told[1]);
}

TEST(RegisteredMemory, MayBeNoneOnARank) {
  EXPECT_THAT(OnRanks(2, 4,
                      [](Rank& on) {
                        const Tensor x = on.Take(), other = on.Take();
                        const bool has_none = on.world.rank() == 1;
                        const auto registration =
                            on.world.Register(has_none ? Buffer{} : BufferOfTensor(x));
                        ASSERT_THAT(registration, IsOk());
                        EXPECT_EQ(registration->empty(), has_none);
                        on.Fill(other, 1);
                        EXPECT_THAT(on.Sum(other).Await(on.queue), IsOk());
                        EXPECT_EQ(on.Read(other), 2);
                      }),
              IsOk());
}

// One rank's buffer of the next call was registered once.
TEST(RegisteredMemory, IsAsAnyOtherOnceItsRegistrationIsGivenUpWhichWaitsForCallsBefore) {
  for (const uint64_t seed : {5, 6, 7, 8}) {
    EXPECT_THAT(OnRanks(2, seed,
                        [](Rank& on) {
                          const Tensor x = on.Take(), other = on.Take();
                          Registration registration = on.Register(x);
                          on.Fill(x, 1);
                          const Work work = on.Sum(x);
                          registration = Registration();
                          EXPECT_TRUE(work.IsDone());
                          const Tensor& used = on.world.rank() == 0 ? x : other;
                          on.Fill(used, 2);
                          EXPECT_THAT(on.Sum(used).Await(on.queue), IsOk());
                          EXPECT_EQ(on.Read(used), 4);
                        }),
                IsOk());
  }
}

TEST(RegisteredMemory, IsOfOneCommunicatorAndNotOfThoseThatAreSplitFromIt) {
  EXPECT_THAT(OnRanks(2, 9,
                      [](Rank& on) {
                        const Tensor x = on.Take(), other = on.Take();
                        const Registration of_world = on.Register(x);
                        const auto group = *on.world.Split(0, 0);
                        const Tensor& used = on.world.rank() == 0 ? x : other;
                        on.Fill(used, 1);
                        EXPECT_THAT(on.SumOf(*group, used).Await(on.queue), IsOk());
                        EXPECT_EQ(on.Read(used), 2);
                        const auto of_group = group->Register(BufferOfTensor(other));
                        ASSERT_THAT(of_group, IsOk());
                        EXPECT_THAT(on.SumOf(*group, other).Await(on.queue), IsOk());
                        EXPECT_THAT(on.Sum(x).Await(on.queue), IsOk());
                      }),
              IsOk());
}

TEST(RegisteredMemory, IsNoneOfTransfersAndOrderedSums) {
  EXPECT_THAT(OnRanks(2, 10,
                      [](Rank& on) {
                        const Tensor x = on.Take(), other = on.Take();
                        const Registration registration = on.Register(x);
                        const bool sends = on.world.rank() == 0;
                        const Tensor& used = sends ? x : other;
                        on.Fill(used, 1);
                        const Work work =
                            sends ? on.world.Send(BufferOfTensor(x), 1, {.queue = &on.queue})
                                  : on.world.Recv(BufferOfTensor(other), 0, {.queue = &on.queue});
                        EXPECT_THAT(work.Await(on.queue), IsOk());
                        EXPECT_THAT(
                            on.world
                                .AllReduce(BufferOfTensor(used),
                                           {.order = SumOrder::kOrdered, .queue = &on.queue})
                                .Await(on.queue),
                            IsOk());
                        EXPECT_EQ(on.Read(used), 2);
                      }),
              IsOk());
}

TEST(RegisteredMemory, CannotBecomeItWithinACapture) {
  EXPECT_THAT(OnRanks(2, 11,
                      [](Rank& on) {
                        const Tensor x = on.Take();
                        ASSERT_THAT(on.world.BeginCapture(on.queue), IsOk());
                        EXPECT_THAT(on.world.Register(BufferOfTensor(x)),
                                    StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("within a capture")));
                        EXPECT_THAT(on.world.EndCapture(on.queue), IsOk());
                      }),
              IsOk());
}

TEST(RegisteredMemory, EndsWithoutAWordAfterItsCommunicatorHasFailed) {
  EXPECT_THAT(OnRanks(2, 12,
                      [](Rank& on) {
                        const Tensor x = on.Take();
                        const Registration registration = on.Register(x);
                        if (on.world.rank() == 1) on.world.Abort("no more");
                        EXPECT_THAT(on.world.Barrier().Wait(),
                                    StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
                        EXPECT_THAT(on.world.Register(BufferOfTensor(x)),
                                    StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
                      }),
              IsOk());
}

// --- What the emulation does not let pass

TEST(StrictRegistrations, FailACallOfARankInRegisteredMemoryAndAnotherThatIsNot) {
  EXPECT_THAT(OnRanks(2, 21,
                      [](Rank& on) {
                        const Tensor x = on.Take(), other = on.Take();
                        const Registration registration = on.Register(x);
                        const Tensor& used = on.world.rank() == 0 ? x : other;
                        on.Fill(used, 1);
                        EXPECT_THAT(on.Sum(used).Wait(),
                                    StatusIs(absl::StatusCode::kInternal,
                                             HasSubstr("registered memory, and another rank's")));
                      }),
              IsOk());
}

// Each of two buffers counts for itself.
TEST(StrictRegistrations, FailACallWhereOnlyAnOutputIsAMixture) {
  EXPECT_THAT(
      OnRanks(2, 22,
              [](Rank& on) {
                const Tensor x = on.Take(2 * kCount), other = on.Take(2 * kCount);
                const Registration registration = on.Register(x);
                const Tensor& to = on.world.rank() == 0 ? x : other;
                const Tensor from = other.Slice(on.world.rank() * kCount, {kCount});
                on.Fill(from, 1);
                EXPECT_THAT(
                    on.world
                        .AllGather(BufferOfTensor(from), BufferOfTensor(to), {.queue = &on.queue})
                        .Wait(),
                    StatusIs(absl::StatusCode::kInternal, HasSubstr("the output of")));
              }),
      IsOk());
}

TEST(StrictRegistrations, FailACallInMemoryOfWhichAPartIsRegistered) {
  for (const int64_t registered : {kCount / 2, kCount - 1}) {
    EXPECT_THAT(OnRanks(2, 23,
                        [registered](Rank& on) {
                          const Tensor x = on.Take();
                          const Registration registration = on.Register(x.Slice(0, {registered}));
                          on.Fill(x, 1);
                          EXPECT_THAT(on.Sum(x).Wait(),
                                      StatusIs(absl::StatusCode::kInternal,
                                               HasSubstr("only a part is registered")));
                        }),
                IsOk());
  }
}

// Memory is registered as NCCL takes it, by whole pages: what lies beside it there is registered
// too.
TEST(StrictRegistrations, FailAMixtureThatComesOfASharedPage) {
  EXPECT_THAT(OnRanks(2, 24,
                      [](Rank& on) {
                        const Tensor x = on.Take(100), other = on.Take(100);
                        const Registration registration = on.Register(x.Slice(0, {50}));
                        const Tensor used = (on.world.rank() == 0 ? x : other).Slice(50, {50});
                        on.Fill(used, 1);
                        EXPECT_THAT(on.Sum(used).Wait(), StatusIs(absl::StatusCode::kInternal));
                      }),
              IsOk());
}

TEST(StrictRegistrations, FailALaunchInMemoryWhoseRegistrationHasGoneSinceItsCapture) {
  EXPECT_THAT(OnRanks(2, 25,
                      [](Rank& on) {
                        const Tensor x = on.Take();
                        Registration registration = on.Register(x);
                        ASSERT_THAT(on.world.BeginCapture(on.queue), IsOk());
                        EXPECT_THAT(on.Sum(x).Await(on.queue), IsOk());
                        auto captured = on.world.EndCapture(on.queue);
                        ASSERT_THAT(captured, IsOk());
                        registration = Registration();
                        on.Fill(x, 1);
                        EXPECT_THAT((*captured)->Launch(on.queue).Wait(),
                                    StatusIs(absl::StatusCode::kInternal,
                                             HasSubstr("whose registration has gone")));
                      }),
              IsOk());
}

TEST(StrictRegistrations, FailTheDeviceWhereMemoryIsGivenBackBeforeItsRegistration) {
  EXPECT_THAT(
      OnRanks(2, 26,
              [](Rank& on) {
                std::optional<TensorPool> pool(std::in_place, on.queue.device());
                Tensor x = pool->Allocate(DType::kF32, {kCount});
                const Registration registration = on.Register(x);
                on.all.arrive_and_wait();
                x = Tensor();
                pool.reset();
              }),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("given back before its registration")));
}

TEST(StrictRegistrations, FailTheDeviceWhereOneOutlivesItsCommunicator) {
  EXPECT_THAT(OnRanks(2, 27,
                      [](Rank& on) {
                        const Tensor x = on.Take();
                        const Registration registration = on.Register(x);
                        on.all.arrive_and_wait();
                        on.owned.reset();
                      }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("outlive their communicator")));
}

}  // namespace
}  // namespace muster::comm
