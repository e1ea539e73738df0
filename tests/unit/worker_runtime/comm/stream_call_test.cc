// Calls of a backend that works on a stream of the device, which the tests play.
#include "worker_runtime/comm/stream_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "muster/tensor.h"
#include "muster/work.h"
#include "proto/base/progress_board.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/operation_ring.h"
#include "worker_runtime/nn/operations.h"

namespace muster::comm {
namespace {

using testing::CountingCuda;
using testing::EmulatedCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeLateDevice;
using testing::StatusIs;

std::shared_ptr<StreamCompletion> Call(Queue& queue) {
  return std::make_shared<StreamCompletion>([] { return "a sum"; }, queue);
}

// Each call doubles what the queue has put there just before, and the queue goes on with it.
TEST(StreamCalls, FollowTheQueueAndAreFollowedByItWithoutTheHostsWaiting) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    EmulatedCuda cuda({.seed = seed});
    CountingCuda counting(cuda);
    {
      const std::unique_ptr<Device> device = MakeLateDevice(counting);
      TensorPool pool(*device);
      Queue queue(*device, &pool);
      Queue stream(*device, nullptr, Queue::Lane::kCommunication);
      const Operations& operations = device->operations(DType::kF32);
      const Tensor x = pool.Allocate(DType::kF32, {1}), sum = pool.Allocate(DType::kF32, {1});
      operations.clear(queue, sum);
      counting.Mark();
      for (int i = 1; i <= 10; ++i) {
        operations.fill(queue, i, x);
        const auto call = Call(queue);
        call->filled().HoldUp(stream);
        operations.add(stream, x, x, x);
        call->finished().Record(stream);
        call->MarkPosted();
        EXPECT_THAT(Work(call).Await(queue), IsOk());
        operations.add(queue, sum, x, sum);
        call->Finish(absl::OkStatus());
      }
      EXPECT_EQ(counting.since_mark().host_waits, 0);
      EXPECT_LE(counting.since_mark().made, 2);  // events are used again
      float total = 0;
      EXPECT_THAT(device->Download(queue, sum.raw_data(), &total, sizeof(total)), IsOk());
      EXPECT_EQ(total, 110);
    }
    EXPECT_THAT(cuda.Finish(), IsOk());
  }
}

TEST(StreamCalls, AwaitWaitsUntilTheBackendHasTakenACallUpAndTellsWhyItDidNot) {
  EmulatedCuda cuda({.seed = 6});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    for (const bool fails : {false, true}) {
      const auto call = Call(queue);
      std::thread backend([&] {
        if (fails) return call->Finish(absl::UnavailableError("rank 3 has gone"));
        Queue stream(*device, nullptr, Queue::Lane::kCommunication);
        call->finished().Record(stream);
        call->MarkPosted();
      });
      const absl::Status status = Work(call).Await(queue);
      backend.join();
      if (fails) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 3")));
      } else {
        EXPECT_THAT(status, IsOk());
      }
    }
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(StreamCalls, WhatFailsAfterAwaitIsToldByWait) {
  EmulatedCuda cuda({.seed = 7});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    const auto call = Call(queue);
    call->MarkPosted();
    EXPECT_THAT(Work(call).Await(queue), IsOk());
    call->Finish(absl::UnavailableError("rank 3 has gone"));
    EXPECT_THAT(Work(call).Wait(), StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

// A call as it stands on the progress board.
struct Shown {
  explicit Shown(Queue& queue,
                 std::shared_ptr<OperationRing> ring = std::make_shared<OperationRing>())
      : ring(std::move(ring)), call(Call(queue)) {
    call->ShowWaits(this->ring, ticket);
  }
  BoardSnapshot::Record record() const { return *ring->Read(ticket); }

  const std::shared_ptr<OperationRing> ring;
  const OperationRing::Ticket ticket = ring->Record(
      0, {.kind = OperationKind::kAllReduce, .dtype = DType::kF32, .count = 8}, 0, MonoTime());
  const std::shared_ptr<StreamCompletion> call;
};

// The hang watch goes by this: the host is long past a call when the device comes to it.
TEST(StreamCalls, AreShownAsWaitedForFromAwaitUntilTheirEndThoughNoThreadWaits) {
  EmulatedCuda cuda({.seed = 8});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    Shown shown(queue);
    shown.ring->SetState(shown.ticket, OperationState::kStarted);
    shown.call->MarkPosted();
    EXPECT_FALSE(shown.record().awaited);
    EXPECT_THAT(Work(shown.call).Await(queue), IsOk());
    EXPECT_TRUE(shown.record().awaited);
    EXPECT_EQ(shown.record().state, OperationState::kStarted);
    // Looking in vain does not take that away.
    EXPECT_THAT(Work(shown.call).Wait(MonoTime()), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(shown.record().awaited);
    shown.ring->SetState(shown.ticket, OperationState::kDone);
    shown.call->Finish(absl::OkStatus());
    EXPECT_FALSE(shown.record().awaited);
    EXPECT_THAT(Work(shown.call).Await(queue), IsOk());
    EXPECT_FALSE(shown.record().awaited);
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(StreamCalls, AreShownAsWaitedForUntilTheBackendTakesThemUp) {
  EmulatedCuda cuda({.seed = 9});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    Shown shown(queue);
    std::thread waits([&] { EXPECT_THAT(Work(shown.call).Await(queue), IsOk()); });
    while (!shown.record().awaited) std::this_thread::yield();
    shown.call->MarkPosted();
    waits.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

// The wait at a step's end is for the rank's own kernels too: it would make the rank with the
// busiest host the slow one.
TEST(StreamCalls, WhatAThreadWaitsForACallThatAQueueFollowsIsNotCountedAsWaitingForOthers) {
  EmulatedCuda cuda({.seed = 10});
  {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    Queue queue(*device);
    const testing::TemporaryDirectory directory;
    const std::string board = directory.File("board");
    std::string bytes(kBoardBytes, '\0');
    const BoardHeader header = NewBoardHeader();
    std::memcpy(bytes.data(), &header, sizeof(header));
    testing::WriteFile(board, bytes);
    const auto waited = [&] {
      return testing::ReadFile(board).substr(offsetof(ProgressBoard, waited_ns), sizeof(int64_t));
    };
    Shown shown(queue, *OperationRing::OpenBoard(board));
    shown.call->MarkPosted();
    EXPECT_THAT(Work(shown.call).Await(queue), IsOk());
    const std::string before = waited();
    EXPECT_THAT(Work(shown.call).Wait(MonoNow() + absl::Milliseconds(5)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(waited(), before);
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

}  // namespace
}  // namespace muster::comm
