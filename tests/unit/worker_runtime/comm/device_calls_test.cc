// Calls whose buffers lie in the memory of a device that the host cannot reach: the third part of
// the contract of Communicator, for back ends that work on the host's memory. Ranks share one
// emulated GPU.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "muster/tensor.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/unit/worker_runtime/comm/communicator_contract.h"
#include "worker_runtime/comm/gloo/gloo_communicator.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/solo_communicator.h"

namespace muster::comm {
namespace {

using testing::EmulatedCuda;
using testing::MakeLateDevice;

// An array on a device, which holds it in turn: bytes go there by its queue, late.
class OnDevice {
 public:
  OnDevice(const Device& device, TypedArray& host, DType dtype)
      : device_(device),
        queue_(device),
        pool_(device),
        host_(host),
        memory_(pool_.Allocate(dtype, {host.count()})) {
    device_.Upload(queue_, host.buffer().data, memory_.raw_data(), memory_.num_bytes());
  }
  Queue* queue() { return &queue_; }
  Buffer buffer() { return {memory_.raw_data(), host_.count(), memory_.dtype()}; }
  Buffer block(int64_t index, int64_t count) {
    return {memory_.Slice(index * count, {count}).raw_data(), count, memory_.dtype()};
  }
  // What the device's kernels would see now.
  const TypedArray& Read() {
    EXPECT_THAT(
        device_.Download(queue_, memory_.raw_data(), host_.buffer().data, memory_.num_bytes()),
        IsOk());
    return host_;
  }

 private:
  const Device& device_;
  Queue queue_;
  TensorPool pool_;
  TypedArray& host_;
  const Tensor memory_;
};

std::vector<ContractBackend::Join> MakeLoopback(int size, const CommunicatorOptions& options) {
  if (size == 1) {
    return {[] { return MakeSoloCommunicator({.group = "world"}); }};
  }
  auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(
      MakeLoopbackCommunicators({.group = "world", .size = size, .options = options}));
  std::vector<ContractBackend::Join> joins;
  for (int rank = 0; rank < size; ++rank) {
    joins.push_back([ranks, rank] { return std::move((*ranks)[rank]); });
  }
  return joins;
}

std::vector<ContractBackend::Join> MakeGloo(int size, const CommunicatorOptions& options) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<ContractBackend::Join> joins;
  for (int rank = 0; rank < size; ++rank) {
    joins.push_back([=]() -> std::unique_ptr<Communicator> {
      auto device = OpenGlooDevice("127.0.0.1", "lo");
      EXPECT_THAT(device, IsOk());
      auto made =
          GlooCommunicator::Make({.group = "world", .rank = rank, .size = size, .options = options},
                                 *device, store, "device_calls_test");
      EXPECT_THAT(made, IsOk());
      return made.ok() ? *std::move(made) : nullptr;
    });
  }
  return joins;
}

class DeviceCalls : public CommunicatorContract {
 protected:
  // Runs `program` on each number of ranks, with a seed of its own for the order of the device's
  // work.
  void OnDevices(const std::function<void(Communicator& c, const Device& device)>& program) {
    for (const int size : {1, 2, 3}) {
      EmulatedCuda cuda({.seed = static_cast<uint64_t>(size) + 7});
      OnRanks(size, [&](Communicator& c) {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        program(c, *device);
      });
      EXPECT_THAT(cuda.Finish(), IsOk());
    }
  }
};

constexpr int64_t kCount = 1003;

TEST_P(DeviceCalls, AllReduceFollowsWhatWasPutOnTheQueueAndIsFollowedByWhatComesAfterAwait) {
  OnDevices([](Communicator& c, const Device& device) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
      TypedArray host = Filled(dtype, kCount, c.rank());
      OnDevice array(device, host, dtype);
      const Work work = c.AllReduce(array.buffer(), {.queue = array.queue()});
      ASSERT_THAT(work.Await(*array.queue()), IsOk());
      EXPECT_EQ(
          Difference(array.Read(), [&](int64_t i) { return Reduced(ReduceOp::kSum, c.size(), i); }),
          "");
      EXPECT_THAT(work.Wait(), IsOk());  // tells how it ended, and changes nothing
      EXPECT_EQ(
          Difference(array.Read(), [&](int64_t i) { return Reduced(ReduceOp::kSum, c.size(), i); }),
          "");
    }
  });
}

TEST_P(DeviceCalls, IsFollowedByWhatComesOnEveryQueueThatAwaitsIt) {
  OnDevices([](Communicator& c, const Device& device) {
    TypedArray host = Filled(DType::kF32, kCount, c.rank());
    OnDevice array(device, host, DType::kF32);
    const Work work = c.AllReduce(array.buffer(), {.queue = array.queue()});
    ASSERT_THAT(work.Await(*array.queue()), IsOk());
    Queue other(device, nullptr, Queue::Lane::kCopy);
    ASSERT_THAT(work.Await(other), IsOk());
    EXPECT_THAT(
        device.Download(other, array.buffer().data, host.buffer().data, kCount * sizeof(float)),
        IsOk());
    EXPECT_EQ(Difference(host, [&](int64_t i) { return Reduced(ReduceOp::kSum, c.size(), i); }),
              "");
  });
}

TEST_P(DeviceCalls, WaitPutsTheResultOnTheQueueOfTheCall) {
  OnDevices([](Communicator& c, const Device& device) {
    TypedArray host = Filled(DType::kF32, kCount, c.rank());
    OnDevice array(device, host, DType::kF32);
    ASSERT_THAT(c.AllReduce(array.buffer(), {.queue = array.queue()}).Wait(), IsOk());
    EXPECT_EQ(
        Difference(array.Read(), [&](int64_t i) { return Reduced(ReduceOp::kSum, c.size(), i); }),
        "");
  });
}

TEST_P(DeviceCalls, ReduceScatterInPlaceLeavesTheOtherBlocksAlone) {
  OnDevices([](Communicator& c, const Device& device) {
    TypedArray host = Filled(DType::kF32, kCount * c.size(), c.rank());
    OnDevice array(device, host, DType::kF32);
    const Work work =
        c.ReduceScatter(array.buffer(), array.block(c.rank(), kCount), {.queue = array.queue()});
    ASSERT_THAT(work.Await(*array.queue()), IsOk());
    const auto expected = [&](int64_t i) {
      return i / kCount == c.rank() ? Reduced(ReduceOp::kSum, c.size(), i) : ValueAt(c.rank(), i);
    };
    EXPECT_EQ(Difference(array.Read(), expected), "");
  });
}

TEST_P(DeviceCalls, AllGatherInPlaceBringsEveryBlock) {
  OnDevices([](Communicator& c, const Device& device) {
    TypedArray host(DType::kF32, kCount * c.size());
    for (int64_t i = 0; i < kCount; ++i) host.Set(c.rank() * kCount + i, ValueAt(c.rank(), i));
    OnDevice array(device, host, DType::kF32);
    const Work work =
        c.AllGather(array.block(c.rank(), kCount), array.buffer(), {.queue = array.queue()});
    ASSERT_THAT(work.Await(*array.queue()), IsOk());
    EXPECT_EQ(
        Difference(array.Read(),
                   [&](int64_t i) { return ValueAt(static_cast<int>(i / kCount), i % kCount); }),
        "");
  });
}

TEST_P(DeviceCalls, OrderedSumsOverLeavesHaveTheBitsOfTheHost) {
  OnDevices([](Communicator& c, const Device& device) {
    constexpr int64_t kLeaves = 3;
    const LeafRange own{c.rank() * kLeaves, (c.rank() + 1) * kLeaves};
    const size_t num_roots = CoverWithSubtrees(own, c.size() * kLeaves).size();
    std::vector<TypedArray> host, on_host;
    std::vector<std::unique_ptr<OnDevice>> arrays;
    for (size_t r = 0; r < num_roots; ++r) {
      host.push_back(Filled(DType::kF32, kCount, static_cast<int>(r) + c.rank()));
    }
    on_host = host;
    std::vector<ConstBuffer> roots, host_roots;
    for (size_t r = 0; r < num_roots; ++r) {
      arrays.push_back(std::make_unique<OnDevice>(device, host[r], DType::kF32));
      roots.push_back(arrays[r]->buffer());
      host_roots.push_back(on_host[r].buffer());
    }
    Queue* const queue = arrays[0]->queue();
    const Work work = c.AllReduceSubtrees(roots, arrays[0]->buffer(),
                                          {.leaves_per_rank = kLeaves, .queue = queue});
    ASSERT_THAT(work.Await(*queue), IsOk());
    ASSERT_THAT(
        c.AllReduceSubtrees(host_roots, on_host[0].buffer(), {.leaves_per_rank = kLeaves}).Wait(),
        IsOk());
    EXPECT_EQ(Difference(arrays[0]->Read(), [&](int64_t i) { return on_host[0].Get(i); }), "");
  });
}

TEST_P(DeviceCalls, BroadcastAndAllToAllMoveWhatTheyMoveOnTheHost) {
  OnDevices([](Communicator& c, const Device& device) {
    TypedArray host = Filled(DType::kI32, kCount, c.rank());
    OnDevice array(device, host, DType::kI32);
    const int root = c.size() - 1;
    ASSERT_THAT(c.Broadcast(array.buffer(), root, {.queue = array.queue()}).Await(*array.queue()),
                IsOk());
    EXPECT_EQ(Difference(array.Read(), [&](int64_t i) { return ValueAt(root, i); }), "");

    TypedArray from_host = Filled(DType::kF32, kCount * c.size(), c.rank());
    TypedArray to_host(DType::kF32, kCount * c.size());
    OnDevice from(device, from_host, DType::kF32), to(device, to_host, DType::kF32);
    ASSERT_THAT(
        c.AllToAll(from.buffer(), to.buffer(), {.queue = from.queue()}).Await(*from.queue()),
        IsOk());
    const auto expected = [&](int64_t i) {
      return ValueAt(static_cast<int>(i / kCount), c.rank() * kCount + i % kCount);
    };
    EXPECT_EQ(Difference(to.Read(), expected), "");
  });
}

TEST_P(DeviceCalls, WhatIsReceivedComesFromTheOtherDevicesMemory) {
  OnDevices([](Communicator& c, const Device& device) {
    if (c.size() < 2) return;
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    TypedArray sent_host = Filled(DType::kF32, kCount, c.rank());
    TypedArray got_host(DType::kF32, kCount);
    OnDevice sent(device, sent_host, DType::kF32), got(device, got_host, DType::kF32);
    const Work receives = c.Recv(got.buffer(), from, {.queue = got.queue()});
    const Work sends = c.Send(sent.buffer(), to, {.queue = sent.queue()});
    ASSERT_THAT(receives.Await(*got.queue()), IsOk());
    ASSERT_THAT(sends.Await(*sent.queue()), IsOk());
    EXPECT_EQ(Difference(got.Read(), [&](int64_t i) { return ValueAt(from, i); }), "");
  });
}

TEST_P(DeviceCalls, AnAbortReachesWhoAwaits) {
  EmulatedCuda cuda({.seed = 3});
  OnRanks(2, [&](Communicator& c) {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    TypedArray host = Filled(DType::kF32, kCount, c.rank());
    OnDevice array(*device, host, DType::kF32);
    if (c.rank() == 1) return c.Abort("no more");
    const Work work = c.AllReduce(array.buffer(), {.queue = array.queue()});
    EXPECT_THAT(work.Await(*array.queue()),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST_P(DeviceCalls, AQueueOfTheHostNeedsNothingAndAwaitsWithTheResult) {
  OnRanks(3, [](Communicator& c) {
    Queue queue(Device::Cpu());
    TypedArray array = Filled(DType::kF32, kCount, c.rank());
    ASSERT_THAT(c.AllReduce(array.buffer(), {.queue = &queue}).Await(queue), IsOk());
    EXPECT_EQ(Difference(array, [&](int64_t i) { return Reduced(ReduceOp::kSum, c.size(), i); }),
              "");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceCalls,
                         ::testing::Values(ContractBackend{"loopback", MakeLoopback},
                                           ContractBackend{"gloo", MakeGloo}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::comm
