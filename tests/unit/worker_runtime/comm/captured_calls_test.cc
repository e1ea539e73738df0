// Calls that are captured with the work of a device, and launched with it: on an emulated GPU, by a
// backend that works on its streams as nccl does.
#include "worker_runtime/comm/captured_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "muster/tensor.h"
#include "muster/work.h"
#include "proto/base/progress_board.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/comm/operation_ring.h"
#include "worker_runtime/nn/operations.h"

namespace muster::comm {
namespace {

using testing::EmulatedCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeLateDevice;
using testing::MakeStreamCommunicators;
using testing::StatusIs;

// One rank: its group, and a number on its device.
class Rank {
 public:
  Rank(Communicator& world, const Device& device)
      : world(world), pool_(device), queue(device, &pool_), operations_(&Ops()) {
    Fill(static_cast<float>(world.rank()));
  }

  Communicator& world;
  std::optional<absl::Duration> sum_timeout;

  void Fill(float value) { operations_->fill(queue, value, x_); }
  void AddTo(const Tensor& to) { operations_->add(queue, x_, to, to); }
  void Double() { AddTo(x_); }
  Work Sum() { return SumOf(world); }
  Work SumOf(Communicator& group) {
    return group.AllReduce(buffer(), {.timeout = sum_timeout, .queue = &queue});
  }
  Buffer buffer() { return {x_.raw_data(), 1, DType::kF32}; }
  float Read() {
    float value = 0;
    EXPECT_THAT(queue.device().Download(queue, x_.raw_data(), &value, sizeof(value)), IsOk());
    return value;
  }
  // `put`, captured.
  std::unique_ptr<CapturedCalls> Capture(const std::function<void()>& put) {
    EXPECT_THAT(world.BeginCapture(queue), IsOk());
    put();
    auto captured = world.EndCapture(queue);
    EXPECT_THAT(captured, IsOk());
    return captured.ok() ? *std::move(captured) : nullptr;
  }
  // A number is doubled, added over all ranks, and doubled again.
  std::unique_ptr<CapturedCalls> CaptureSum() {
    return Capture([&] {
      Double();
      EXPECT_THAT(Sum().Await(queue), IsOk());
      Double();
    });
  }

 private:
  const Operations& Ops() { return queue.device().operations(DType::kF32); }

  TensorPool pool_;

 public:
  Queue queue;

 private:
  const Operations* const operations_;
  const Tensor x_ = pool_.Allocate(DType::kF32, {1});
};

void OnRanks(int size, uint64_t seed, const std::function<void(Rank& rank)>& body,
             const Membership& common = {}) {
  EmulatedCuda cuda({.seed = seed});
  {
    Membership membership = common;
    membership.size = size;
    auto communicators = MakeStreamCommunicators(cuda, membership);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        Rank on(*communicators[rank], *device);
        body(on);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(CapturedCalls, AreCalledAtEachLaunchOnWhatLiesInTheirBuffersThen) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    OnRanks(3, seed, [](Rank& on) {
      const auto captured = on.CaptureSum();
      EXPECT_EQ(on.Read(), on.world.rank());  // nothing has run
      for (int i = 0; i < 4; ++i) {
        on.Fill(static_cast<float>(i + on.world.rank()));
        const Work work = captured->Launch(on.queue);
        EXPECT_EQ(on.Read(), 4 * (3 * i + 3));
        EXPECT_THAT(work.Wait(), IsOk());
      }
      // One behind the other, and nobody waits between them.
      on.Fill(1);
      const Work first = captured->Launch(on.queue), second = captured->Launch(on.queue);
      EXPECT_THAT(second.Wait(), IsOk());
      EXPECT_THAT(first.Wait(), IsOk());
      EXPECT_EQ(on.Read(), 12 * 12);
    });
  }
}

// The backend of this test compares the numbers of host and device at each call.
TEST(CapturedCalls, TakeSequenceNumbersWhenTheyAreLaunchedAndNoneBefore) {
  OnRanks(2, 11, [](Rank& on) {
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    const auto captured = on.CaptureSum();
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
      EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    }
  });
}

TEST(CapturedCalls, MayBeOfAllGroupsThatWereSplitFromOneAnother) {
  OnRanks(4, 12, [](Rank& on) {
    const int rank = on.world.rank();
    const auto half = *on.world.Split(rank / 2, 0);
    const auto quarter = *half->Split(0, 0, "again");
    const auto captured = on.Capture([&] {
      EXPECT_THAT(on.SumOf(*half).Await(on.queue), IsOk());
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
      EXPECT_THAT(on.SumOf(*quarter).Await(on.queue), IsOk());
    });
    on.Fill(1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
      EXPECT_THAT(half->Barrier().Wait(), IsOk());
    }
    EXPECT_EQ(on.Read(), 16 * 16 * 16);
  });
}

TEST(CapturedCalls, MayBeTransfersBetweenTwoOfTheRanks) {
  OnRanks(2, 13, [](Rank& on) {
    const auto captured = on.Capture([&] {
      const bool sends = on.world.rank() == 0;
      const Work work = sends ? on.world.Send(on.buffer(), 1, {.queue = &on.queue})
                              : on.world.Recv(on.buffer(), 0, {.queue = &on.queue});
      EXPECT_THAT(work.Await(on.queue), IsOk());
      on.Double();
    });
    on.Fill(on.world.rank() == 0 ? 5 : 7);
    EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
    EXPECT_EQ(on.Read(), 10);
  });
}

TEST(CapturedCalls, CountTheBytesOfEachLaunchAndNoneOfTheCapture) {
  OnRanks(2, 14, [](Rank& on) {
    const int64_t before = on.world.bytes_sent();
    const auto captured = on.CaptureSum();
    EXPECT_THAT(on.Sum().Wait(), IsOk());
    const int64_t of_one = on.world.bytes_sent() - before;
    EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
    EXPECT_EQ(on.world.bytes_sent(), before + 2 * of_one);
    EXPECT_GT(of_one, 0);
  });
}

// The hang watch goes by the board: it sees the same calls whether they were launched or called.
TEST(CapturedCalls, StandOnTheProgressBoardAsIfTheyHadBeenCalledOneByOne) {
  const auto records = [](bool launched) {
    const auto ring = std::make_shared<OperationRing>();
    OnRanks(1, 15,
            [&](Rank& on) {
              std::unique_ptr<CapturedCalls> captured;
              const auto twice = [&] {
                EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
                EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
              };
              if (launched) captured = on.Capture(twice);
              EXPECT_EQ(ring->num_records(), 0);
              for (int i = 0; i < 2; ++i) {
                if (launched) {
                  EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
                } else {
                  twice();
                }
              }
              EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
            },
            {.ring = ring});
    return ring->Snapshot().operations;
  };
  const auto launched = records(true), called = records(false);
  ASSERT_EQ(launched.size(), 5);
  ASSERT_EQ(called.size(), 5);
  for (size_t i = 0; i < called.size(); ++i) {
    EXPECT_EQ(launched[i].sequence, called[i].sequence);
    EXPECT_EQ(launched[i].chain, called[i].chain);
    EXPECT_EQ(launched[i].kind, called[i].kind);
    EXPECT_EQ(launched[i].state, OperationState::kDone);
  }
}

TEST(CapturedCalls, AreAllShownAsStartedAndWaitedForUntilTheLaunchEnds) {
  const auto ring = std::make_shared<OperationRing>();
  OnRanks(2, 16,
          [&](Rank& on) {
            const auto captured = on.CaptureSum();
            if (on.world.rank() == 1) {  // comes once the other's launch is on the board
              while (ring->num_records() == 0) std::this_thread::yield();
            }
            const Work work = captured->Launch(on.queue);
            if (on.world.rank() == 0) {  // whose record is the first
              const auto record = ring->Read(0);
              EXPECT_TRUE(record.has_value());
              EXPECT_TRUE(record->state == OperationState::kDone || record->awaited);
            }
            EXPECT_THAT(work.Wait(), IsOk());
          },
          {.ring = ring});
  for (const auto& record : ring->Snapshot().operations) {
    EXPECT_EQ(record.state, OperationState::kDone);
    EXPECT_FALSE(record.awaited);
  }
}

TEST(CapturedCalls, AreNoneWithoutAQueueNorOrderedAndTheCaptureSaysSo) {
  OnRanks(2, 17, [](Rank& on) {
    std::vector<float> on_host = {1};
    for (const bool ordered : {false, true}) {
      EXPECT_THAT(on.world.BeginCapture(on.queue), IsOk());
      const Work refused =
          ordered
              ? on.world.AllReduce(on.buffer(), {.order = SumOrder::kOrdered, .queue = &on.queue})
              : on.world.AllReduce(BufferOf(on_host));
      EXPECT_THAT(refused.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition));
      // Nothing is left of what is captured before and behind it.
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
      EXPECT_THAT(on.world.EndCapture(on.queue),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cannot be captured")));
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
    }
    EXPECT_THAT(on.world.AllReduce(BufferOf(on_host)).Wait(), IsOk());
    EXPECT_EQ(on_host[0], 2);
    EXPECT_EQ(on.Read(), 2);
  });
}

TEST(CapturedCalls, OfOtherThreadsWaitUntilTheCaptureHasEnded) {
  OnRanks(2, 18, [](Rank& on) {
    const auto other = *on.world.Split(0, 0, "other");
    std::thread calls;
    std::atomic<bool> is_about_to_call = false;
    const auto captured = on.Capture([&] {
      calls = std::thread([&] {
        is_about_to_call = true;
        EXPECT_THAT(other->Barrier().Wait(), IsOk());
      });
      while (!is_about_to_call) std::this_thread::yield();
      absl::SleepFor(absl::Milliseconds(20));  // for it to come as far as it does
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
    });
    calls.join();
    on.Fill(2);
    EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
    EXPECT_EQ(on.Read(), 4);
  });
}

TEST(CapturedCalls, ThatNobodyAwaitsAreEndedByTheCapture) {
  OnRanks(2, 19, [](Rank& on) {
    const auto captured = on.Capture([&] { on.Sum(); });
    on.Fill(2);
    EXPECT_THAT(captured->Launch(on.queue).Wait(), IsOk());
    EXPECT_EQ(on.Read(), 4);
  });
}

TEST(CapturedCalls, FailOnAllRanksAfterAnAbortBeforeTheLaunch) {
  OnRanks(2, 21, [](Rank& on) {
    const auto captured = on.CaptureSum();
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    if (on.world.rank() == 1) on.world.Abort("no more");
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(captured->Launch(on.queue).Wait(),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
    }
  });
}

TEST(CapturedCalls, FailOnTheOthersWhereARankNeverLaunches) {
  OnRanks(3, 22, [](Rank& on) {
    on.sum_timeout = absl::Milliseconds(300);
    const auto captured = on.CaptureSum();
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    if (on.world.rank() == 1) return;
    EXPECT_THAT(captured->Launch(on.queue).Wait(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("all_reduce")));
  });
}

// What was launched with it would wait for ever.
TEST(CapturedCalls, EndAllGroupsOfALaunchWhereOneHasFailedBefore) {
  OnRanks(2, 25, [](Rank& on) {
    const auto other = *on.world.Split(0, 0, "other");
    const auto captured = on.Capture([&] {
      EXPECT_THAT(on.Sum().Await(on.queue), IsOk());
      EXPECT_THAT(on.SumOf(*other).Await(on.queue), IsOk());
    });
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    other->Abort("no more");
    EXPECT_THAT(captured->Launch(on.queue).Wait(), StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(on.world.Barrier().Wait(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
    EXPECT_EQ(on.Read(), on.world.rank());  // nothing has run
  });
}

// Ranks of a GPU would wait for each other.
TEST(CapturedCalls, FailWhereAnotherRankCallsOneByOneWhatTheyLaunch) {
  OnRanks(2, 23, [](Rank& on) {
    const auto captured = on.CaptureSum();
    EXPECT_THAT(on.world.Barrier().Wait(), IsOk());
    const Work work = on.world.rank() == 0 ? captured->Launch(on.queue) : on.Sum();
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInternal, HasSubstr("another rank's")));
  });
}

TEST(CapturedCalls, AreOfNoBackendThatWorksOnTheHost) {
  auto ranks = MakeLoopbackCommunicators({.size = 2});
  EmulatedCuda cuda({.seed = 24});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    EXPECT_FALSE(ranks[0]->captures());
    EXPECT_THAT(ranks[0]->BeginCapture(queue), StatusIs(absl::StatusCode::kUnimplemented));
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

}  // namespace
}  // namespace muster::comm
