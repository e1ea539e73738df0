// The nccl backend meets the contract of Communicator, over a library in NCCL's place and an
// emulated runtime of CUDA. Ranks are threads, each with streams and a control mesh of its own.
// tests/gpu/nccl_communicator_test.cc has NCCL itself.
#include "worker_runtime/comm/nccl/nccl_communicator.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_data.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_failures.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_cuda.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_nccl.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/nccl/nccl_remake.h"

namespace muster::comm {
namespace {

// What the ranks of one group share.
struct Machine {
  Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    nccl.CheckRules();
    cuda.CheckRules();
  }

  FakeCuda cuda;
  FakeNccl nccl;
  const std::shared_ptr<Store> store = std::make_shared<MemoryStore>();
};

// `former`: what the rank has of an earlier group; null: nothing.
std::unique_ptr<Communicator> Join(const Machine& machine, Membership membership,
                                   const std::string& prefix = "test",
                                   std::unique_ptr<NcclRanks> former = nullptr) {
  NcclContext context = {.library = machine.nccl.library(), .store = machine.store};
  if (membership.size > 1) {
    auto device = OpenGlooDevice("127.0.0.1", "lo");
    EXPECT_THAT(device, IsOk());
    context.control = *device;
  }
  auto communicator =
      NcclCommunicator::Make(std::move(membership), std::move(context), prefix, std::move(former));
  EXPECT_THAT(communicator, IsOk());
  return communicator.ok() ? *std::move(communicator) : nullptr;
}

std::vector<ContractBackend::Join> MakeNccl(int size, const CommunicatorOptions& options) {
  const auto machine = std::make_shared<Machine>();
  std::vector<ContractBackend::Join> joins;
  for (int rank = 0; rank < size; ++rank) {
    joins.push_back([=] {
      return Join(*machine, {.group = "world", .rank = rank, .size = size, .options = options});
    });
  }
  return joins;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract,
                         ::testing::Values(ContractBackend{.name = "emulated",
                                                           .make = MakeNccl,
                                                           .sees_sizes_and_ends = false,
                                                           .registers_host_memory = false}),
                         [](const auto& info) { return info.param.name; });

// `program` on each rank; communicators end when all programs have.
void OnRanks(const Machine& machine, int size, const std::function<void(Communicator&)>& program) {
  std::barrier<> all_done(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto c = Join(machine, {.group = "world", .rank = rank, .size = size});
      if (c != nullptr) program(*c);
      all_done.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr int64_t kCount = 1009;

// What a rank has on the device.
Buffer OnDevice(Machine& machine, int rank) {
  void* const memory = machine.cuda.Allocate(kCount * sizeof(float));
  std::memcpy(memory, Filled(DType::kF32, kCount, rank).buffer().data, kCount * sizeof(float));
  return {memory, kCount, DType::kF32};
}

void ExpectSum(const Buffer& buffer, int size) {
  TypedArray host(DType::kF32, kCount);
  std::memcpy(host.buffer().data, buffer.data, kCount * sizeof(float));
  EXPECT_EQ(Difference(host, [size](int64_t i) { return Reduced(ReduceOp::kSum, size, i); }), "");
}

TEST(NcclCommunicator, SumsWhatLiesOnDevices) {
  Machine machine;
  OnRanks(machine, 3, [&](Communicator& c) {
    for (const SumOrder order : {SumOrder::kFast, SumOrder::kOrdered}) {
      const Buffer buffer = OnDevice(machine, c.rank());
      ASSERT_THAT(c.AllReduce(buffer, {.order = order}).Wait(), IsOk());
      ExpectSum(buffer, 3);
    }
  });
}

// A device with one stream, and no kernels.
class StreamDevice final : public Device {
 public:
  StreamDevice() { cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0); }
  ~StreamDevice() override { cudaStreamDestroy(stream_); }

  absl::string_view name() const override { return "a stream"; }
  bool has_elements() const override { return true; }
  const Operations& operations(DType) const override { std::abort(); }
  const Device& meta() const override { return *this; }
  std::unique_ptr<Event> MakeEvent() const override { return std::make_unique<OwnEvent>(stream_); }
  cudaStream_t stream() const { return stream_; }

 private:
  class OwnEvent final : public Event {
   public:
    explicit OwnEvent(cudaStream_t stream) : stream_(stream) {
      cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    }
    ~OwnEvent() override { cudaEventDestroy(event_); }
    void Record(Queue&) override { cudaEventRecord(event_, stream_); }
    void HoldUp(Queue&) const override { cudaStreamWaitEvent(stream_, event_, 0); }
    void* native() const override { return event_; }

   private:
    const cudaStream_t stream_;
    cudaEvent_t event_ = nullptr;
  };

  cudaStream_t stream_ = nullptr;
};

TEST(NcclCommunicator, FollowsAQueueAndIsFollowed) {
  Machine machine;
  OnRanks(machine, 3, [&](Communicator& c) {
    const StreamDevice device;
    Queue queue(device);
    for (const SumOrder order : {SumOrder::kFast, SumOrder::kOrdered}) {
      const Buffer buffer = OnDevice(machine, 0), after = OnDevice(machine, 0);
      TypedArray own = Filled(DType::kF32, kCount, c.rank());
      constexpr size_t kBytes = kCount * sizeof(float);
      FakeCuda::Put(device.stream(), [&] {  // what the call is to read comes late
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::memcpy(buffer.data, own.buffer().data, kBytes);
      });
      const Work sum = c.AllReduce(buffer, {.order = order, .queue = &queue});
      ASSERT_THAT(sum.Await(queue), IsOk());
      FakeCuda::Put(device.stream(), [&] { std::memcpy(after.data, buffer.data, kBytes); });
      ASSERT_THAT(sum.Wait(), IsOk());
      const std::unique_ptr<Event> end = device.MakeEvent();
      end->Record(queue);
      while (cudaEventQuery(static_cast<cudaEvent_t>(end->native())) != cudaSuccess) {
        std::this_thread::yield();
      }
      ExpectSum(after, 3);
    }
  });
}

TEST(NcclCommunicator, RegistersMemoryBetweenCallsAndGivesItUp) {
  Machine machine;
  std::barrier<> all(2);
  OnRanks(machine, 2, [&](Communicator& c) {
    const Buffer buffer = OnDevice(machine, c.rank());
    {
      const Work before = c.AllReduce(buffer);
      const auto registration = c.Register(buffer);
      ASSERT_THAT(registration, IsOk());
      EXPECT_THAT(before.Wait(), IsOk());
      all.arrive_and_wait();
      EXPECT_EQ(machine.nccl.num_registered(), 2);
      all.arrive_and_wait();
    }
    all.arrive_and_wait();
    EXPECT_EQ(machine.nccl.num_registered(), 0);
    all.arrive_and_wait();
    ExpectSum(buffer, 2);
    TypedArray host(DType::kF32, kCount);
    EXPECT_THAT(c.Register(c.rank() == 1 ? host.buffer() : buffer),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("rank 1: the memory to register is not a GPU's")));
    all.arrive_and_wait();
    EXPECT_EQ(machine.nccl.num_registered(), 0);
  });
}

TEST(NcclCommunicator, SaysWhatNcclMetAndEndsEverybodysCalls) {
  Machine machine;
  std::atomic<int> num_calling = 0;
  OnRanks(machine, 3, [&](Communicator& c) {
    ASSERT_THAT(c.Barrier().Wait(), IsOk());
    const Buffer buffer = OnDevice(machine, c.rank());
    if (c.rank() < 2) {
      const Work work = c.AllReduce(buffer);
      ++num_calling;
      EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kUnavailable,
                                        AllOf(HasSubstr("all_reduce #1"), HasSubstr("on rank 1"),
                                              HasSubstr("remote error"))));
      return;
    }
    while (num_calling < 2) std::this_thread::yield();
    machine.nccl.LoseConnection(1);
  });
}

// The ranks do what MakeNcclCommunicator does between two rounds.
TEST(NcclCommunicator, TwoOfThreeGoOnInACommunicatorThatIsShrunkFromTheirs) {
  Machine machine;
  std::barrier all(3);
  const auto program = [&](int rank) {
    auto c = Join(machine, {.rank = rank, .size = 3, .may_be_remade = true, .backend = {"nccl"}});
    ASSERT_NE(c, nullptr);
    const Buffer buffer = OnDevice(machine, rank / 2);
    Work work;
    if (rank != 1) {  // they hang in NCCL's kernel
      work = c->AllReduce(buffer);
      const absl::Status early = work.Wait(MonoNow() + absl::Milliseconds(20));
      EXPECT_THAT(early, testing::HasStatusCode(absl::StatusCode::kDeadlineExceeded));
    }
    all.arrive_and_wait();
    if (rank == 1) {
      c->Abort("round 1 is over");
      all.arrive_and_wait();
      return;
    }
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("round 1 is over")));
    std::unique_ptr<NcclRanks> former = static_cast<NcclCommunicator&>(*c).GiveUp();
    c.reset();
    ASSERT_THAT(SayWhatItWas(former.get(), *machine.store,
                             {.rank = rank / 2,
                              .size = 2,
                              .prefix = "two/nccl",
                              .deadline = MonoNow() + absl::Minutes(1)}),
                IsOk());
    c = Join(machine, {.rank = rank / 2, .size = 2}, "two", std::move(former));
    ASSERT_NE(c, nullptr);
    EXPECT_THAT(machine.nccl.CallsOfThisThread(),
                ::testing::Contains(absl::StrCat("a/", rank, " shrink")));
    ASSERT_THAT(c->AllReduce(buffer).Wait(), IsOk());
    ExpectSum(buffer, 2);
    all.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) threads.emplace_back([&, rank] { program(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace muster::comm
