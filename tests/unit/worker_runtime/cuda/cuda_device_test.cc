// The GPU as a device over an emulated one, in several orders of its work; and what a step must not
// do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/emulation/block_emulator.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/emulated_products.h"
#include "tests/unit/worker_runtime/cuda/cuda_device_contract.h"
#include "worker_runtime/cuda/capability.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/nn/meta_gpu.h"

namespace muster::testing {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Some rows of the small models here.
constexpr int64_t kLogitsAtOnce = 130;

// The seeds under which what stands around products takes passes of its own, as is known before or
// found out.
constexpr uint64_t kWithoutEpilogues = 3;
constexpr uint64_t kEpiloguesRefused = 4;

std::unique_ptr<Device> OpenDevice(uint64_t seed, std::string&) {
  BlockEmulator::SetSchedule(seed);
  using Epilogues = EmulatedProducts::Epilogues;
  const auto epilogues = seed == kWithoutEpilogues   ? Epilogues::kNone
                         : seed == kEpiloguesRefused ? Epilogues::kRefusedWhenTried
                                                     : Epilogues::kInOnePass;
  return *MakeCudaDevice(
      {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = seed}),
       .products = std::make_unique<EmulatedProducts>(epilogues),
       .operations = &CudaOperations,
       .logits_at_once = kLogitsAtOnce});
}

namespace {

INSTANTIATE_TEST_SUITE_P(Emulated, CudaDeviceContract,
                         ::testing::Values(1, 2, kWithoutEpilogues, kEpiloguesRefused));

// An emulated GPU that is looked at after its device is gone.
struct Watched {
  explicit Watched(size_t memory_bytes = size_t{1} << 30, uint64_t seed = 5)
      : emulated({.seed = seed, .memory_bytes = memory_bytes}) {
    auto counting = std::make_unique<CountingCuda>(emulated);
    calls = counting.get();
    device = *MakeCudaDevice({.cuda = std::move(counting),
                              .products = std::make_unique<EmulatedProducts>(),
                              .operations = &CudaOperations,
                              .logits_at_once = kLogitsAtOnce});
  }

  EmulatedCuda emulated;
  CountingCuda* calls;
  std::unique_ptr<Device> device;
};

TEST(CudaDevice, SaysWhichGpuItIs) {
  const auto device = MakeCudaDevice(
      {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.uuid = "GPU-a"}),
       .products = std::make_unique<EmulatedProducts>(),
       .operations = &CudaOperations});
  ASSERT_THAT(device, IsOk());
  ASSERT_TRUE((*device)->gpu().has_value());
  EXPECT_EQ((*device)->gpu()->uuid, "GPU-a");
  EXPECT_EQ((*device)->gpu()->number, 0);
  EXPECT_FALSE(Device::Meta().gpu().has_value());
}

TEST(CudaCapability, IsMetByCodeOfItsGenerationOrByTextThatTheDriverCompiles) {
  const auto check = [](int major, int minor, absl::string_view architectures) {
    return CheckCapability({.name = "a GPU", .major = major, .minor = minor}, architectures);
  };
  EXPECT_THAT(check(9, 0, "90"), IsOk());
  EXPECT_THAT(check(10, 0, "90"), IsOk());
  EXPECT_THAT(check(8, 9, "80,90"), IsOk());
  EXPECT_THAT(check(12, 0, "80,86,89,90,100,120"), IsOk());
  EXPECT_THAT(check(8, 0, "90"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("a GPU"), HasSubstr("8.0"), HasSubstr("9.0"),
                             HasSubstr("MUSTER_CUDA_ARCHITECTURES=80 deploy/dev install PREFIX"))));
  EXPECT_THAT(
      check(11, 0, "80,90,120"),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("11.0"), HasSubstr("8.0, 9.0, 12.0"),
                                                     HasSubstr("MUSTER_CUDA_ARCHITECTURES=110 "))));
  EXPECT_FALSE(check(8, 0, "86,90").ok());
  EXPECT_THAT(check(7, 5, "80,86,89,90,100,120"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("a GPU has compute capability 7.5, and the kernels need 8.0")));
}

// Keeps what it is asked for.
class RecordingProducts final : public Products {
 public:
  explicit RecordingProducts(std::vector<CudaProduct>& asked) : asked_(asked) {}
  bool HasInOnePass(const CudaProduct& product) override { return inner_.HasInOnePass(product); }
  absl::Status Multiply(CudaStream stream, const CudaProduct& product) override {
    asked_.push_back(product);
    return inner_.Multiply(stream, product);
  }

 private:
  EmulatedProducts inner_;
  std::vector<CudaProduct>& asked_;
};

// Otherwise cuBLASLt takes kernels that are several times slower, or has no epilogue.
TEST(CudaDevice, EveryProductOfAGptBeginsItsRowsOnMultiplesOfSixteenBytes) {
  constexpr int64_t kBytes = 16;
  std::vector<CudaProduct> asked;
  const auto device =
      *MakeCudaDevice({.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{}),
                       .products = std::make_unique<RecordingProducts>(asked),
                       .operations = &CudaOperations});
  GptOnDevice gpu(*device, DType::kBf16, DType::kF32);
  gpu.Pass();
  EXPECT_EQ(asked.size(), 3u * (4 * GptOnDevice::kConfig.layers + 1));
  for (const CudaProduct& p : asked) {
    SCOPED_TRACE(absl::StrCat(p.m, " x ", p.k, " and ", p.k, " x ", p.n, p.transpose_a ? ", a" : "",
                              p.transpose_b ? ", b" : ""));
    const auto of_type = static_cast<int64_t>(SizeOf(p.type));
    EXPECT_EQ((p.transpose_a ? p.m : p.k) * of_type % kBytes, 0);
    EXPECT_EQ((p.transpose_b ? p.k : p.n) * of_type % kBytes, 0);
    EXPECT_EQ(p.n * static_cast<int64_t>(SizeOf(p.result)) % kBytes, 0);
    for (const void* pointer :
         std::initializer_list<const void*>{p.a, p.b, p.c, p.addend, p.bias, p.pre}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % kBytes, 0u);
    }
  }
}

TEST(CudaDevice, GivesEverythingBack) {
  Watched on;
  {
    GptOnDevice gpu(*on.device, DType::kBf16, DType::kF32);
    gpu.Pass();
  }
  on.device.reset();
  EXPECT_THAT(on.emulated.Finish(), IsOk());
}

TEST(CudaDevice, TakesNothingFromCudaAndWaitsForNothingInPassesAfterTheFirst) {
  Watched on;
  GptOnDevice gpu(*on.device, DType::kBf16, DType::kF32);
  gpu.Pass();
  gpu.Pass();
  on.calls->Mark();
  gpu.Pass();
  EXPECT_EQ(on.calls->since_mark().allocations, 0);
  EXPECT_EQ(on.calls->since_mark().frees, 0);
  EXPECT_EQ(on.calls->since_mark().made, 0);
  EXPECT_EQ(on.calls->since_mark().host_waits, 1);  // the test reads the loss
}

// The GPU lags under some of these seeds. A host that asked all places would ask a hundred times
// for each copy.
TEST(CudaDevice, AsksForAFewOfItsPlacesHoweverManyCopiesAreUnderWay) {
  constexpr int kCopies = 300;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    Watched on(size_t{1} << 20, seed);
    TensorPool pool(*on.device);
    Queue queue(*on.device, &pool);
    const Tensor x = pool.Allocate(DType::kF32, {1});
    EXPECT_THAT(on.device->Download(queue, nullptr, nullptr, 0), IsOk());
    on.calls->Mark();
    for (int i = 0; i < kCopies; ++i) {
      const auto number = static_cast<float>(i);
      on.device->Upload(queue, &number, x.raw_data(), sizeof(number));
    }
    EXPECT_LE(on.calls->since_mark().questions, 3 * kCopies);
    float last = 0;
    EXPECT_THAT(on.device->Download(queue, x.raw_data(), &last, sizeof(last)), IsOk());
    EXPECT_EQ(last, kCopies - 1);
  }
}

// An emulated launch fails that asks for more than there is.
TEST(CudaDevice, AttendsInF32WithWideHeadsInTheSharedMemoryOfAnRtx4090) {
  const size_t before = std::exchange(BlockEmulator::shared_bytes_max, size_t{99} << 10);
  {
    Watched on;
    TensorPool pool(*on.device);
    Queue queue(*on.device, &pool);
    constexpr int64_t kRows = 70, kWidth = 128;
    const kernels::AttentionShape shape = {
        .batch = 1, .sequence = kRows, .heads = 1, .head_width = kWidth};
    const Tensor qkv = OnDevice(pool, DType::kF32, RandomNumbers<float>(3 * kRows * kWidth, "qkv"));
    const Tensor dout = OnDevice(pool, DType::kF32, RandomNumbers<float>(kRows * kWidth, "dout"));
    const Tensor out = pool.Allocate(DType::kF32, {kRows * kWidth});
    const Tensor dqkv = pool.Allocate(DType::kF32, {3 * kRows * kWidth});
    const Tensor saved = pool.Allocate(DType::kF32, {2, kRows});
    const Operations& operations = on.device->operations(DType::kF32);
    operations.attention_forward(queue, shape, qkv, out, saved, {});
    operations.attention_backward(queue, shape,
                                  {.qkv = qkv, .saved = saved, .out = out, .dout = dout}, dqkv, {});
    for (const float number : OnHost(*on.device, dqkv)) ASSERT_TRUE(std::isfinite(number));
  }
  BlockEmulator::shared_bytes_max = before;
}

TEST(CudaDevice, MayGoBeforeItsEventsAndUsesThemAgain) {
  Watched on;
  std::unique_ptr<Event> event = on.device->MakeEvent();
  event = nullptr;
  on.calls->Mark();
  event = on.device->MakeEvent();
  EXPECT_EQ(on.calls->since_mark().made, 0);
  on.device.reset();
  event = nullptr;
  EXPECT_THAT(on.emulated.Finish(), IsOk());
}

TEST(CudaDevice, SaysThatNothingCrossesWhileWorkIsCapturedAndGoesOn) {
  Watched on;
  {
    TensorPool pool(*on.device);
    Queue queue(*on.device, &pool);
    const Tensor x = pool.Allocate(DType::kF32, {1});
    float number = 1;
    const auto says = StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("bytes cross"));
    ASSERT_THAT(on.device->BeginCapture(queue), IsOk());
    on.device->Upload(queue, &number, x.raw_data(), sizeof(number));
    EXPECT_THAT(on.device->EndCapture(queue), says);
    ASSERT_THAT(on.device->BeginCapture(queue), IsOk());
    EXPECT_THAT(on.device->Download(queue, x.raw_data(), &number, sizeof(number)), says);
    EXPECT_THAT(on.device->EndCapture(queue), says);
    on.device->Upload(queue, &number, x.raw_data(), sizeof(number));
    EXPECT_THAT(on.device->Download(queue, x.raw_data(), &number, sizeof(number)), IsOk());
    EXPECT_EQ(number, 1);
  }
  on.device.reset();
  EXPECT_THAT(on.emulated.Finish(), IsOk());
}

TEST(CudaDevice, ComesToAnEndWhenItCannotBegin) {
  EmulatedCuda emulated({.seed = 1, .memory_bytes = 0});
  EXPECT_THAT(MakeCudaDevice({.cuda = std::make_unique<CountingCuda>(emulated),
                              .products = std::make_unique<EmulatedProducts>(),
                              .operations = &CudaOperations}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(emulated.Finish(), IsOk());
}

TEST(CudaDevice, NeverHoldsAllLogits) {
  Watched on;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t rows : {64, 128}) {
      constexpr int64_t kVocabulary = 400, kWidth = 8;
      TensorPool pool(*on.device);
      ParameterStore store(dtype);
      Parameter& table = store.Declare({.name = "table", .shape = {kVocabulary, kWidth}});
      table.BindValue(pool.Allocate(dtype, table.shape()));
      table.BindGradient(pool.Allocate(DType::kF32, table.shape()));
      Queue queue(*on.device);
      on.device->operations(dtype).clear(queue, table.value());
      const Tensor x = OnDevice(pool, dtype, std::vector<float>(rows * kWidth, 1));
      const auto before = pool.usage().bytes_in_use;
      Tape tape(pool);
      const std::vector<int32_t> targets(rows, 7);
      const Loss loss = LmHeadLoss(tape, tape.Watch(x.Reshaped({rows, kWidth})), table, targets);
      EXPECT_NEAR(NumberOnHost(*on.device, loss.total), rows * std::log(kVocabulary), 1e-3 * rows);
      tape.Backward(loss.output, 2);
      EXPECT_LT(pool.usage().bytes_in_use_peak - before, 30000u) << "bytes, of a row 800";
    }
  }
}

TEST(CudaDevice, OperationsTakeTheMemoryThatMetaCounts) {
  Watched on;
  for (const auto& [name, call] : OperationsOn::Calls()) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const OperationsOn taken(*on.device, dtype, DType::kF32, call);
      const OperationsOn counted(MetaOfGpus(), dtype, DType::kF32, call);
      EXPECT_EQ(taken.bytes_peak(), counted.bytes_peak()) << name << " " << ToString(dtype);
    }
  }
}

TEST(CudaDevice, HasAProductAndWhatStandsAroundItInOneKernel) {
  Watched on;
  const LinearOn once(*on.device, DType::kBf16, DType::kF32, /*in_passes=*/false);
  const LinearOn in_passes(*on.device, DType::kBf16, DType::kF32, /*in_passes=*/true);
  // Sums of a bias's gradient are added by one more.
  EXPECT_EQ(once.num_kernels(), 6 + 1 + 2 + 1 + 1);
  EXPECT_EQ(in_passes.num_kernels(), 2 + 2 + 1 + 2 + 3 + 2 + 2 + 2 + 1 + 1);
}

using CudaDeviceDeathTest = ::testing::Test;

TEST(CudaDeviceDeathTest, MemoryThatIsNotThereIsNamedWithWhatIsLeft) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Watched on(10000);
        TensorPool pool(*on.device);
        const Tensor x = pool.Allocate(DType::kF32, {100});
        pool.Allocate(DType::kF32, {10000});
      },
      "no memory for 40000 bytes more .*of 10000 bytes are free");
}

TEST(CudaDeviceDeathTest, TypesThatItDoesNotComputeInAreNamed) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Watched on;
  EXPECT_DEATH(on.device->operations(DType::kF64), "computes in f32, bf16 and f16, not in f64");
}

TEST(CudaDeviceDeathTest, ElementsAreNotTheHostsToRead) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Watched on;
  TensorPool pool(*on.device);
  const Tensor x = pool.Allocate(DType::kF32, {1});
  EXPECT_DEATH(x.data<float>(), "host_reads");
}

}  // namespace
}  // namespace muster::testing
