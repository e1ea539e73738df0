// The nccl backend meets the contract of Communicator: one rank in this process, and two ranks on
// one GPU, each a process with a NCCL_HOSTID of its own, since NCCL refuses two ranks on one device
// otherwise (NCCL compares host hash and bus id when it initialises); three of them become two.
// Functional only: nothing here says anything about speed.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "muster/cuda_device.h"
#include "muster/tensor.h"
#include "proto/base/status_macros.h"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_data.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_failures.h"
#include "worker_runtime/comm/communicator_registry.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/nccl/nccl_library.h"

namespace muster::comm {
namespace {

using ::muster::testing::Subprocess;
using ::muster::testing::SubprocessResult;
using ::muster::testing::TemporaryDirectory;

constexpr char kRankVariable[] = "MUSTER_TEST_NCCL_RANK";
constexpr char kStoreVariable[] = "MUSTER_TEST_NCCL_STORE";

// Empty if there is a GPU.
std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no device" : "";
}

// A store of files, for ranks that are processes.
class FileStore final : public Store {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Set(const std::string& key, const std::string& value, MonoTime) override {
    testing::WriteFile(PathOf(key) + ".new", value);
    std::filesystem::rename(PathOf(key) + ".new", PathOf(key));
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Wait(const std::string& key, MonoTime deadline) override {
    const bool found =
        testing::WaitUntil([&] { return testing::FileExists(PathOf(key)); }, deadline - MonoNow());
    if (!found) return absl::DeadlineExceededError(absl::StrCat("nobody has set ", key));
    return testing::ReadFile(PathOf(key));
  }

 private:
  std::string PathOf(const std::string& key) const {
    return absl::StrCat(directory_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
  }

  const std::string directory_;
};

std::vector<ContractBackend::Join> MakeNccl(int size, const CommunicatorOptions& options) {
  EXPECT_EQ(size, 1) << "the threads of one process cannot share a GPU";
  return {[options] {
    auto communicator =
        MakeCommunicator("nccl", {.membership = {.group = "world", .options = options},
                                  .store = std::make_shared<MemoryStore>(),
                                  .prefix = "test"});
    EXPECT_THAT(communicator, IsOk());
    return communicator.ok() ? *std::move(communicator) : nullptr;
  }};
}

// Instantiated without a GPU too, so that the skipped tests are listed by name.
ContractBackend Nccl() {
  const std::string no_gpu = WhyNoGpu();
  if (!no_gpu.empty()) {
    return {.name = "nccl", .make = MakeNccl, .max_size = 0, .limit_reason = "no GPU: " + no_gpu};
  }
  return {.name = "nccl",
          .make = MakeNccl,
          .max_size = 1,
          .limit_reason = "NCCL takes one rank of a process and GPU; see NcclPair"};
}
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract, ::testing::Values(Nccl()),
                         [](const auto& info) { return info.param.name; });

TEST(NcclLibrary, OpensAndHasTheVersionThatWeNeed) {
  const auto library = NcclLibrary::Open();
  if (!library.ok()) GTEST_SKIP() << library.status().message();
  EXPECT_THAT((*library)->name, ::testing::StartsWith("NCCL 2."));
}

// --- One of two ranks, in a process of its own

int RankOfThisProcess() { return std::atoi(std::getenv(kRankVariable)); }
std::shared_ptr<Store> StoreOfRanks() {
  return std::make_shared<FileStore>(std::getenv(kStoreVariable));
}

// `former`: of an earlier round; null: there is none.
std::unique_ptr<Communicator> Join(absl::string_view prefix, int rank, int size,
                                   std::unique_ptr<Communicator> former = nullptr) {
  BackendRequest request{.membership = {.rank = rank, .size = size, .may_be_remade = true},
                         .store = StoreOfRanks(),
                         .prefix = std::string(prefix),
                         .master_addr = "127.0.0.1",
                         .nccl_interfaces = "lo"};
  request.former = std::move(former);
  auto communicator = request.former == nullptr ? MakeCommunicator("nccl", std::move(request))
                                                : RemakeCommunicator(std::move(request));
  EXPECT_THAT(communicator, IsOk());
  return communicator.ok() ? *std::move(communicator) : nullptr;
}
std::unique_ptr<Communicator> JoinPair(absl::string_view prefix) {
  return Join(prefix, RankOfThisProcess(), 2);
}

void CheckReductions(Communicator& c) {
  for (const DType dtype : kAllTypes) {
    for (const SumOrder order : {SumOrder::kFast, SumOrder::kOrdered}) {
      for (const int64_t count : {1, 7, 20011}) {
        TypedArray sum = Filled(dtype, count, c.rank());
        ASSERT_THAT(c.AllReduce(sum.buffer(), {.order = order}).Wait(), IsOk());
        EXPECT_EQ(Difference(sum, [](int64_t i) { return Reduced(ReduceOp::kSum, 2, i); }), "");
        TypedArray whole = Filled(dtype, 2 * count, c.rank()), block(dtype, count);
        ASSERT_THAT(c.ReduceScatter(whole.buffer(), block.buffer(), {.order = order}).Wait(),
                    IsOk());
        EXPECT_EQ(
            Difference(block,
                       [&](int64_t i) { return Reduced(ReduceOp::kSum, 2, c.rank() * count + i); }),
            "");
      }
    }
  }
}

void CheckMoves(Communicator& c) {
  constexpr int64_t kCount = 5003;
  TypedArray own = Filled(DType::kF32, kCount, c.rank()), both(DType::kF32, 2 * kCount);
  ASSERT_THAT(c.AllGather(own.buffer(), both.buffer()).Wait(), IsOk());
  const auto gathered = [](int64_t i) { return ValueAt(static_cast<int>(i / kCount), i % kCount); };
  EXPECT_EQ(Difference(both, gathered), "");
  TypedArray root = Filled(DType::kF32, kCount, c.rank());
  ASSERT_THAT(c.Broadcast(root.buffer(), 1).Wait(), IsOk());
  EXPECT_EQ(Difference(root, [](int64_t i) { return ValueAt(1, i); }), "");
  TypedArray parts = Filled(DType::kF32, 2 * kCount, c.rank()), mine(DType::kF32, 2 * kCount);
  ASSERT_THAT(c.AllToAll(parts.buffer(), mine.buffer()).Wait(), IsOk());
  const auto exchanged = [&](int64_t i) {
    return ValueAt(static_cast<int>(i / kCount), c.rank() * kCount + i % kCount);
  };
  EXPECT_EQ(Difference(mine, exchanged), "");
  // Both receive before they send.
  TypedArray got(DType::kF32, kCount);
  const Work recv = c.Recv(got.buffer(), 1 - c.rank());
  const Work send = c.Send(own.buffer(), 1 - c.rank());
  ASSERT_THAT(recv.Wait(), IsOk());
  ASSERT_THAT(send.Wait(), IsOk());
  EXPECT_EQ(Difference(got, [&](int64_t i) { return ValueAt(1 - c.rank(), i); }), "");
}

void CheckDeviceBuffers(Communicator& c) {
  constexpr int64_t kCount = 20011;
  TypedArray host = Filled(DType::kF32, kCount, c.rank());
  const size_t bytes = kCount * sizeof(float);
  for (const SumOrder order : {SumOrder::kFast, SumOrder::kOrdered}) {
    void* device = nullptr;
    ASSERT_EQ(cudaMalloc(&device, bytes), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(device, host.buffer().data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_THAT(c.AllReduce({device, kCount, DType::kF32}, {.order = order}).Wait(), IsOk());
    TypedArray sum(DType::kF32, kCount);
    ASSERT_EQ(cudaMemcpy(sum.buffer().data, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(Difference(sum, [](int64_t i) { return Reduced(ReduceOp::kSum, 2, i); }), "");
    cudaFree(device);
  }
}

void CheckSplit(Communicator& c) {
  auto both = c.Split(0, -c.rank(), "turned");
  ASSERT_THAT(both, IsOk());
  EXPECT_EQ((*both)->rank(), 1 - c.rank());
  EXPECT_THAT((*both)->Barrier().Wait(), IsOk());
}

// An array on a GPU, and a sum over both ranks that was captured there.
class CapturedSum {
 public:
  static constexpr int64_t kCount = 20011;

  CapturedSum(Communicator& c, const Device& device)
      : c_(c), pool_(device), queue_(device, &pool_), x_(pool_.Allocate(DType::kF32, {kCount})) {}

  absl::Status Capture() {
    // What NCCL connects and takes at the first of its kind it has by then.
    for (int i = 0; i < 2; ++i) MUSTER_RETURN_IF_ERROR(Sum().Wait());
    MUSTER_RETURN_IF_ERROR(c_.BeginCapture(queue_));
    const absl::Status status = Sum().Await(queue_);
    MUSTER_ASSIGN_OR_RETURN(captured_, c_.EndCapture(queue_));
    return status;
  }
  Work Launch() { return captured_->Launch(queue_); }
  void Forget() { captured_.reset(); }
  Work Sum() { return c_.AllReduce(buffer(), {.queue = &queue_}); }
  Buffer buffer() const { return {x_.raw_data(), kCount, DType::kF32}; }
  void Bring(TypedArray from) {
    queue_.device().Upload(queue_, from.buffer().data, x_.raw_data(), x_.num_bytes());
  }
  TypedArray Read() {
    TypedArray host(DType::kF32, kCount);
    EXPECT_THAT(queue_.device().Download(queue_, x_.raw_data(), host.buffer().data, x_.num_bytes()),
                IsOk());
    return host;
  }

 private:
  Communicator& c_;
  TensorPool pool_;
  Queue queue_;
  const Tensor x_;
  std::unique_ptr<CapturedCalls> captured_;
};

// Sums in memory that is registered, called and launched, and elsewhere once it is not; and none is
// registered where one rank's is the host's.
void CheckRegisteredMemory(Communicator& c, const Device& device) {
  CapturedSum sum(c, device);
  const auto expected = [](int64_t k) { return Reduced(ReduceOp::kSum, 2, k); };
  {
    auto registration = c.Register(sum.buffer());
    if (absl::IsUnimplemented(registration.status())) return;
    ASSERT_THAT(registration, IsOk());
    EXPECT_FALSE(registration->empty());
    sum.Bring(Filled(DType::kF32, CapturedSum::kCount, c.rank()));
    ASSERT_THAT(sum.Sum().Wait(), IsOk());
    EXPECT_EQ(Difference(sum.Read(), expected), "");
    ASSERT_THAT(sum.Capture(), IsOk());
    sum.Bring(Filled(DType::kF32, CapturedSum::kCount, c.rank()));
    ASSERT_THAT(sum.Launch().Wait(), IsOk());
    EXPECT_EQ(Difference(sum.Read(), expected), "");
    sum.Forget();
  }
  TypedArray of_the_host(DType::kF32, 10);
  EXPECT_THAT(c.Register(c.rank() == 1 ? of_the_host.buffer() : sum.buffer()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1: ")));
  sum.Bring(Filled(DType::kF32, CapturedSum::kCount, c.rank()));
  ASSERT_THAT(sum.Sum().Wait(), IsOk());
  EXPECT_EQ(Difference(sum.Read(), expected), "");
}

// Other calls, of either kind, come between the launches.
void CheckLaunches(Communicator& c, const Device& device) {
  CapturedSum sum(c, device);
  ASSERT_THAT(sum.Capture(), IsOk());
  for (int i = 0; i < 3; ++i) {
    sum.Bring(Filled(DType::kF32, CapturedSum::kCount, c.rank()));
    ASSERT_THAT(sum.Launch().Wait(), IsOk());
    EXPECT_EQ(Difference(sum.Read(), [](int64_t k) { return Reduced(ReduceOp::kSum, 2, k); }), "");
    ASSERT_THAT(c.Barrier().Wait(), IsOk());
  }
}

// One launches, the other never does: NCCL's abort must end its kernel, and lets go once the graph
// is destroyed.
void CheckAbortEndsALaunchThatHangs(const Device& device) {
  auto c = JoinPair("launch");
  ASSERT_NE(c, nullptr);
  CapturedSum sum(*c, device);
  ASSERT_THAT(sum.Capture(), IsOk());
  ASSERT_THAT(c->Barrier().Wait(), IsOk());
  if (c->rank() == 1) return c->Abort("the user pressed stop");
  EXPECT_THAT(sum.Launch().Wait(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the user pressed stop")));
}

void CheckAbsentRankIsNamed() {
  auto c = JoinPair("absent");
  ASSERT_NE(c, nullptr);
  ASSERT_THAT(c->Barrier().Wait(), IsOk());
  TypedArray array = Filled(DType::kF32, 1 << 16, c->rank());
  if (c->rank() == 0) {
    EXPECT_THAT(c->AllReduce(array.buffer(), {.timeout = absl::Milliseconds(500)}).Wait(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("rank 1 of 2 did not reach all_reduce #1")));
  } else {
    // Ends with what rank 0 found out.
    EXPECT_THAT(c->Recv(array.buffer(), 0, {.timeout = absl::Seconds(20)}).Wait(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 did not")));
  }
}

void CheckAbortReachesTheOther() {
  auto c = JoinPair("abort");
  ASSERT_NE(c, nullptr);
  ASSERT_THAT(c->Barrier().Wait(), IsOk());
  if (c->rank() == 1) return c->Abort("the user pressed stop");
  EXPECT_THAT(c->Barrier().Wait(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the user pressed stop")));
}

void CheckMismatchIsNamed() {
  auto c = JoinPair("mismatch");
  ASSERT_NE(c, nullptr);
  TypedArray array(DType::kF32, 1 << 20);
  const Work work = c->rank() == 0 ? c->AllReduce(array.buffer()) : c->Barrier();
  const absl::Status status = work.Wait();
  // NCCL may end one of the two; waiters are told.
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
}

TEST(NcclPairRank, RunsAllChecks) {
  if (std::getenv(kRankVariable) == nullptr) GTEST_SKIP() << "started by NcclPair";
  {
    auto c = JoinPair("pair");
    ASSERT_NE(c, nullptr);
    CheckReductions(*c);
    CheckMoves(*c);
    CheckDeviceBuffers(*c);
    CheckSplit(*c);
    const auto device = OpenCudaDevice(0);
    ASSERT_THAT(device, IsOk());
    CheckLaunches(*c, **device);
    CheckRegisteredMemory(*c, **device);
    CheckAbortEndsALaunchThatHangs(**device);
  }
  CheckAbsentRankIsNamed();
  CheckAbortReachesTheOther();
  CheckMismatchIsNamed();
}

// --- One of three ranks, the second of which is gone in the next round

constexpr absl::Duration kGenerous = absl::Minutes(2);

// Shrinks as between Runtime's rounds: the others are told that theirs is over, wherever they are.
void CheckTwoOfThreeShrink() {
  const int rank = RankOfThisProcess();
  auto c = Join("three", rank, 3);
  ASSERT_NE(c, nullptr);
  ASSERT_THAT(c->Barrier().Wait(), IsOk());
  const auto store = StoreOfRanks();
  if (rank == 1) {
    // Ranks 0 and 2 hang in NCCL's kernel meanwhile.
    EXPECT_THAT(store->Wait("hanging0", MonoNow() + kGenerous), IsOk());
    EXPECT_THAT(store->Wait("hanging2", MonoNow() + kGenerous), IsOk());
    c->Abort("round 1 is over");
    EXPECT_THAT(store->Wait("remade", MonoNow() + kGenerous), IsOk());
    return;
  }
  TypedArray array = Filled(DType::kF32, 1 << 20, rank);
  const Work work = c->AllReduce(array.buffer());
  const absl::Status early = work.Wait(MonoNow() + absl::Milliseconds(500));
  EXPECT_THAT(early, testing::HasStatusCode(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(store->Set(absl::StrCat("hanging", rank), "", MonoNow() + kGenerous), IsOk());
  EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("round 1 is over")));
  c = Join("two", rank / 2, 2, std::move(c));
  ASSERT_NE(c, nullptr);
  CheckReductions(*c);
  CheckMoves(*c);
  CheckDeviceBuffers(*c);
  CheckSplit(*c);
  const auto library = NcclLibrary::Open();
  ASSERT_THAT(library, IsOk());
  const auto how = store->Wait("two/nccl/former/decision", MonoNow() + kGenerous);
  ASSERT_THAT(how, IsOk());
  if ((*library)->comm_revoke != nullptr) {
    EXPECT_EQ(*how, "shrink 1");
    EXPECT_THAT(store->Wait("two/nccl/former/outcome", MonoNow() + kGenerous),
                testing::IsOkAndHolds("shrunk"));
  } else {
    EXPECT_THAT(*how, HasSubstr("has no ncclCommRevoke"));
  }
  EXPECT_THAT(c->Barrier().Wait(), IsOk());
  if (rank == 0) {
    EXPECT_THAT(store->Set("remade", "", MonoNow() + kGenerous), IsOk());
  }
}

// One rank dies without a word. NCCL's proxy may have met the end of the connection by then, and
// refuses to shrink: either way they go on.
void CheckTwoOfThreeGoOnAfterADeath() {
  const int rank = RankOfThisProcess();
  auto c = Join("dying", rank, 3);
  ASSERT_NE(c, nullptr);
  ASSERT_THAT(c->Barrier().Wait(), IsOk());
  if (rank == 1) std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  TypedArray array = Filled(DType::kF32, 1 << 20, rank);
  EXPECT_FALSE(c->AllReduce(array.buffer()).Wait().ok());
  c = Join("living", rank / 2, 2, std::move(c));
  ASSERT_NE(c, nullptr);
  CheckReductions(*c);
  CheckMoves(*c);
  const auto how = StoreOfRanks()->Wait("living/nccl/former/decision", MonoNow() + kGenerous);
  ASSERT_THAT(how, IsOk());
  std::cout << "after a death rank " << rank << " does: " << *how << std::endl;
  EXPECT_THAT(c->Barrier().Wait(), IsOk());
}

TEST(NcclThreeRank, GoesOnWithOneOther) {
  if (std::getenv(kRankVariable) == nullptr) GTEST_SKIP() << "started by NcclThree";
  CheckTwoOfThreeShrink();
  CheckTwoOfThreeGoOnAfterADeath();
}

// Runs the tests of `filter` in `size` processes, each a rank.
void RunRanks(int size, const std::string& filter) {
  const TemporaryDirectory directory;
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const char* libraries = std::getenv("LD_LIBRARY_PATH");
    ranks.emplace_back(testing::SubprocessOptions{
        .argv = {std::filesystem::read_symlink("/proc/self/exe").string(),
                 "--gtest_filter=" + filter},
        .environment = {{kRankVariable, std::to_string(rank)},
                        {kStoreVariable, directory.path()},
                        {"NCCL_HOSTID", "muster-test-host-" + std::to_string(rank)},
                        {"NCCL_SOCKET_IFNAME", "lo"},
                        {"NCCL_IB_DISABLE", "1"},
                        {"NCCL_MAX_CTAS", "2"},
                        {"NCCL_DEBUG", "WARN"},
                        {"LD_LIBRARY_PATH", libraries == nullptr ? "" : libraries}}});
  }
  for (Subprocess& rank : ranks) {
    const SubprocessResult result = rank.Wait(absl::Minutes(3));
    EXPECT_EQ(result.exit_code, 0) << testing::ToString(result);
  }
}

TEST(NcclPair, OfTwoProcessesOnOneGpuMeetsTheContract) {
  if (const std::string why = WhyNoGpu(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  RunRanks(2, "NcclPairRank.*");
}

TEST(NcclThree, ProcessesOnOneGpuGoOnAsTwo) {
  if (const std::string why = WhyNoGpu(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  RunRanks(3, "NcclThreeRank.*");
}

}  // namespace
}  // namespace muster::comm
