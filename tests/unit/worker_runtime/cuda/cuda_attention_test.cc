// Attention by a library on the cuda device: who is asked, in what memory, and what is said where
// it has it not. The library is the host's, on an emulated GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/cuda_device.h"
#include "tests/support/emulation/block_emulator.h"
#include "tests/support/emulation/emulated_attention.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/emulated_products.h"
#include "tests/unit/worker_runtime/cuda/attention_library_contract.h"
#include "worker_runtime/cuda/make_cuda_device.h"

namespace muster::testing {

absl::StatusOr<std::unique_ptr<AttentionLibrary>> MakeEmulatedAttention(CudaApi&) {
  return std::make_unique<EmulatedAttention>();
}

std::unique_ptr<Device> OpenAttention(CudaAttention attention, bool same_bits, std::string&) {
  BlockEmulator::SetSchedule(1);
  CudaParts parts = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = 1}),
                     .products = std::make_unique<EmulatedProducts>(),
                     .operations = &CudaOperations};
  EXPECT_THAT(ChooseAttention({attention, same_bits}, MakeEmulatedAttention, parts), IsOk());
  return *MakeCudaDevice(std::move(parts));
}

namespace {

constexpr kernels::AttentionShape kSmall = {
    .batch = 2, .sequence = 33, .heads = 3, .head_width = 16};
constexpr kernels::AttentionShape kOdd = {.batch = 1, .sequence = 65, .heads = 2, .head_width = 24};
constexpr kernels::AttentionShape kGrouped = {
    .batch = 2, .sequence = 33, .heads = 6, .kv_heads = 2, .head_width = 16, .score_scale = 0.125};

INSTANTIATE_TEST_SUITE_P(Emulated, AttentionContract,
                         ::testing::Values(AttentionCase{kSmall, DType::kBf16, false},
                                           AttentionCase{kSmall, DType::kF16, true},
                                           AttentionCase{kOdd, DType::kBf16, true},
                                           AttentionCase{kGrouped, DType::kBf16, false},
                                           AttentionCase{kGrouped, DType::kF16, true}));

// A device whose library has what `has` lets it have.
struct Asked {
  explicit Asked(CudaAttention attention,
                 std::function<absl::Status(const LibraryAttention&)> has = nullptr) {
    device =
        *MakeCudaDevice({.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = 2}),
                         .products = std::make_unique<EmulatedProducts>(),
                         .operations = &CudaOperations,
                         .attention = std::make_unique<EmulatedAttention>(
                             EmulatedAttention::Options{.has = std::move(has), .calls = &calls}),
                         .attention_must = attention == CudaAttention::kCudnn});
  }
  std::pair<int, int> passes() {
    base::MutexLock lock(calls.mu);
    return {calls.forward, calls.backward};
  }

  EmulatedAttention::Options::Calls calls;
  std::unique_ptr<Device> device;
};

absl::Status HasNothing(const LibraryAttention&) {
  return absl::UnimplementedError("it has no such heads");
}

TEST(CudaAttention, OfSixteenBitsIsTheLibrarysInBothPasses) {
  Asked on(CudaAttention::kAuto);
  AttendOn(*on.device, {kSmall, DType::kBf16, false});
  EXPECT_EQ(on.passes(), std::pair(1, 1));
}

TEST(CudaAttention, OfF32IsOurs) {
  Asked on(CudaAttention::kCudnn);
  AttendOn(*on.device, {kSmall, DType::kF32, false});
  EXPECT_EQ(on.passes(), std::pair(0, 0));
}

// Each call has another length, which a library would have to prepare for.
TEST(CudaAttention, OfATextThatGrowsIsOurs) {
  Asked on(CudaAttention::kCudnn, HasNothing);
  TensorPool pool(*on.device);
  Queue queue(*on.device, &pool);
  kernels::AttentionShape shape = kGrouped;
  shape.of_cache = true;
  const AttentionCase c = {shape, DType::kBf16, false};
  const Tensor qkv = OnDevice(pool, c.dtype, StoredNumbers(c.inputs(), c.dtype, "qkv"));
  const Tensor out = pool.Allocate(c.dtype, {c.outputs()});
  const Tensor saved = pool.Allocate(DType::kF32, {2, c.shape.query_rows()});
  on.device->operations(c.dtype).attention_forward(queue, shape, qkv, out, saved, {});
  EXPECT_LE(RelativeError(OnHost(*on.device, out), AttendOnHost(c).out), 1e-2);
  EXPECT_EQ(on.passes(), std::pair(0, 0));
}

TEST(CudaAttention, ThatTheLibraryHasNotIsOursAndSaidOnce) {
  Asked on(CudaAttention::kAuto, HasNothing);
  const AttentionCase c = {kSmall, DType::kBf16, false};
  ::testing::internal::CaptureStderr();
  const Attended made = AttendOn(*on.device, c);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "device cuda: attention by our kernels: it has no such heads\n");
  EXPECT_EQ(on.passes(), std::pair(0, 0));
  const Attended host = AttendOnHost(c);
  EXPECT_LE(RelativeError(made.out, host.out), 2e-2);
  EXPECT_LE(RelativeError(made.dqkv, host.dqkv), 2e-2);
}

TEST(CudaAttention, ThatTheLibraryHasNotFailsWhereItMustHaveIt) {
  Asked on(CudaAttention::kCudnn, HasNothing);
  TensorPool pool(*on.device);
  Queue queue(*on.device, &pool);
  const AttentionCase c = {kSmall, DType::kF16, false};
  const Tensor qkv = OnDevice(pool, c.dtype, StoredNumbers(c.inputs(), c.dtype, "qkv"));
  const Tensor out = pool.Allocate(c.dtype, {c.outputs()});
  const Tensor saved = pool.Allocate(DType::kF32, {2, c.shape.query_rows()});
  on.device->operations(c.dtype).attention_forward(queue, c.shape, qkv, out, saved, {});
  uint16_t number = 0;
  EXPECT_THAT(on.device->Download(queue, out.raw_data(), &number, sizeof(number)),
              StatusIs(absl::StatusCode::kUnimplemented, ::testing::HasSubstr("no such heads")));
}

// The emulated one spoils all of it; what lies behind is nobody's.
TEST(CudaAttention, HasAllTheMemoryThatTheLibraryWorksInAlsoBeyondWhatIsPlanned) {
  const AttentionCase c = {kSmall, DType::kBf16, false};
  const auto device =
      *MakeCudaDevice({.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = 2}),
                       .products = std::make_unique<EmulatedProducts>(),
                       .operations = &CudaOperations,
                       .attention = std::make_unique<EmulatedAttention>(
                           EmulatedAttention::Options{.more_bytes = (int64_t{1} << 20) + 1}),
                       .attention_must = true});
  const Attended made = AttendOn(*device, c);
  const Attended host = AttendOnHost(c);
  EXPECT_LE(RelativeError(made.out, host.out), 2e-2);
  EXPECT_LE(RelativeError(made.dqkv, host.dqkv), 2e-2);
}

// Memory of a pool at its peak, and operations that are counted, of both passes.
struct Used {
  size_t bytes = 0;
  double flops = 0;
};
Used UsedOn(const Device& device, const AttentionCase& c) {
  TensorPool pool(device);
  Queue queue(device, &pool);
  const Operations& operations = device.operations(c.dtype);
  const Tensor qkv = pool.Allocate(c.dtype, {c.inputs()});
  const Tensor dqkv = pool.Allocate(c.dtype, {c.inputs()});
  const Tensor out = pool.Allocate(c.dtype, {c.outputs()});
  const Tensor dout = pool.Allocate(c.dtype, {c.outputs()});
  const Tensor saved = pool.Allocate(DType::kF32, {2, c.shape.query_rows()});
  operations.fill(queue, 0.5, qkv);
  operations.fill(queue, 0.5, dout);
  operations.attention_forward(queue, c.shape, qkv, out, saved, {});
  operations.attention_backward(queue, c.shape, {qkv, saved, out, dout}, dqkv, {});
  if (device.has_elements()) OnHost(device, dqkv);
  return {pool.usage().bytes_in_use_peak, queue.num_flops()};
}

TEST(CudaAttention, WorksInTheMemoryThatItsMetaDeviceCounts) {
  std::string why;
  for (const CudaAttention by : {CudaAttention::kOwn, CudaAttention::kCudnn}) {
    for (const bool same_bits : {false, true}) {
      for (const kernels::AttentionShape& shape : {kSmall, kGrouped}) {
        const AttentionCase c = {shape, DType::kBf16, same_bits};
        SCOPED_TRACE(::testing::PrintToString(c));
        const auto device = OpenAttention(by, same_bits, why);
        EXPECT_EQ(UsedOn(device->meta(), c).bytes, UsedOn(*device, c).bytes);
      }
    }
  }
}

// A head's products are of its own queries, whoever else shares their keys.
TEST(MetaDevice, CountsTheTwoProductsOfEveryHeadOfQueries) {
  const double expected = 2 * 2 * double(kGrouped.batch * kGrouped.heads * kGrouped.head_width) *
                          double(kGrouped.sequence * kGrouped.sequence);
  kernels::AttentionShape with_all_keys = kGrouped;
  with_all_keys.kv_heads = 0;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    EXPECT_EQ(UsedOn(Device::Meta(), {kGrouped, dtype, false}).flops, expected);
    EXPECT_EQ(UsedOn(Device::Meta(), {with_all_keys, dtype, false}).flops, expected);
  }
}

absl::StatusOr<std::unique_ptr<AttentionLibrary>> MakeNone(CudaApi&) {
  return absl::UnavailableError("the library cannot be loaded");
}

TEST(ChooseAttention, IsTheLibrarysWhereItIsThereAndNothingIsAskedFor) {
  CudaParts parts = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{})};
  EXPECT_THAT(ChooseAttention({}, MakeEmulatedAttention, parts), IsOk());
  EXPECT_NE(parts.attention, nullptr);
  EXPECT_FALSE(parts.attention_must);
}

TEST(ChooseAttention, IsOursWhereThatIsAskedForOrTheSameBitsAre) {
  CudaParts same_bits = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{})};
  EXPECT_THAT(ChooseAttention({.same_bits = true}, MakeEmulatedAttention, same_bits), IsOk());
  EXPECT_EQ(same_bits.attention, nullptr);
  CudaParts parts = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{})};
  EXPECT_THAT(ChooseAttention({CudaAttention::kOwn}, MakeEmulatedAttention, parts), IsOk());
  EXPECT_EQ(parts.attention, nullptr);
  EXPECT_EQ(parts.attention_note, "");
}

TEST(ChooseAttention, SaysWhichLibraryComputesItAndHowItsGradientsAdd) {
  CudaParts parts = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{})};
  EXPECT_THAT(ChooseAttention({CudaAttention::kCudnn, true}, MakeEmulatedAttention, parts), IsOk());
  EXPECT_NE(parts.attention, nullptr);
  EXPECT_EQ(parts.attention_note,
            "attention by an emulated library, with the same bits in every run");
  EXPECT_TRUE(parts.attention_must);
  EXPECT_TRUE(parts.attention_same_bits);
}

TEST(ChooseAttention, FallsBackToOursWhereTheLibraryIsNotThereAndMayBeMissing) {
  CudaParts parts = {.cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{})};
  EXPECT_THAT(ChooseAttention({CudaAttention::kAuto}, MakeNone, parts), IsOk());
  EXPECT_EQ(parts.attention, nullptr);
  EXPECT_EQ(parts.attention_note, "attention by our kernels: the library cannot be loaded");
  EXPECT_THAT(ChooseAttention({CudaAttention::kCudnn}, MakeNone, parts),
              StatusIs(absl::StatusCode::kUnavailable,
                       ::testing::HasSubstr("attention by cuDNN: the library cannot be loaded")));
}

}  // namespace
}  // namespace muster::testing
