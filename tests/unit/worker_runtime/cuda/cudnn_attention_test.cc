// cuDNN's attention as far as it goes without a GPU: its engines are asked about our graphs for
// GPUs that are described to it. They look for CUDA's driver; where there is none the toolkit's
// stub stands for it, whose functions all fail.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/cuda/cudnn_attention_graph.h"
#include "worker_runtime/cuda/cudnn_descriptor.h"
#include "worker_runtime/cuda/cudnn_engines.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster::cudnn {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

struct Gpu {
  const char* name;
  int capability;  // as cuDNN counts: 900 is 9.0
  int num_multiprocessors;
  int shared_bytes;  // of a block, at most
};

constexpr Gpu kA100 = {"NVIDIA A100-SXM4-80GB", 800, 108, 166912};
constexpr Gpu kH100 = {"NVIDIA H100 80GB HBM3", 900, 132, 232448};

// The fields are those that cuDNN 9.19 misses when one is left out.
std::string JsonOf(const Gpu& gpu) {
  return absl::StrCat(
      "{", R"("cudaDeviceId":0,"driverVer":13000,"totalGlobalMem":85017755648,)",
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
      R"("regsPerBlock":65536,"warpSize":32,"maxSharedMemoryPerBlock":49152,)",
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)",
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)",
      R"("supportCoopLaunch":1,"smClockRateKHz":1410000,"memClockRateKHz":1593000,)",
      R"("l2CacheSize":41943040,)",
      absl::Substitute(R"("deviceVer":$0,"multiProcessorCount":$1,)", gpu.capability,
                       gpu.num_multiprocessors),
      absl::Substitute(R"("maxSharedMemoryPerBlockOptin":$0,"deviceName":"$1"})", gpu.shared_bytes,
                       gpu.name));
}

// Whether there is something of the driver's name.
bool HasDriver() {
  for (const char* path : {"libcuda.so.1", MUSTER_CUDA_DRIVER_STUB}) {
    if (*path != '\0' && dlopen(path, RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  }
  return false;
}

class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasDriver()) GTEST_SKIP() << "neither CUDA's driver nor the toolkit's stub of it is here";
    auto library = OpenLibrary();
    if (!library.ok()) GTEST_SKIP() << library.status().message();
    library_ = *std::move(library);
  }

  const Library& library() const { return *library_; }
  absl::StatusOr<std::vector<Engine>> EnginesOf(const Gpu& gpu, Pass pass,
                                                const LibraryAttention& attention) {
    const auto described = DescribeGpu(library(), JsonOf(gpu));
    EXPECT_THAT(described, IsOk());
    const auto graph = AttentionGraph(library(), pass, attention, nullptr);
    if (!graph.ok()) return graph.status();
    return FindEngines(library(), *graph, {.described = &*described}, NeedsOf(pass, attention));
  }

 private:
  std::shared_ptr<const Library> library_;
};

constexpr kernels::AttentionShape kShapes[] = {
    {.batch = 32, .sequence = 1024, .heads = 12, .head_width = 64},  // GPT-2 124M
    {.batch = 16, .sequence = 1024, .heads = 25, .head_width = 64},  // 1.5B
    {.batch = 4, .sequence = 2048, .heads = 20, .head_width = 128},
    {.batch = 2, .sequence = 1023, .heads = 3, .head_width = 80},
    {.batch = 1, .sequence = 77, .heads = 5, .head_width = 96},
    {.batch = 3, .sequence = 129, .heads = 1, .head_width = 72},
    {.batch = 2, .sequence = 2, .heads = 2, .head_width = 8},
    {.batch = 4, .sequence = 4096, .heads = 32, .kv_heads = 8, .head_width = 128},  // Llama 3 8B
    {.batch = 8, .sequence = 1024, .heads = 14, .kv_heads = 2, .head_width = 64},   // Qwen2.5 0.5B
    {.batch = 2, .sequence = 1023, .heads = 6, .kv_heads = 1, .head_width = 80},
    {.batch = 1, .sequence = 77, .heads = 6, .kv_heads = 3, .head_width = 96},
    {.batch = 2, .sequence = 2, .heads = 4, .kv_heads = 2, .head_width = 8},
};

std::string TextOf(const Gpu& gpu, const LibraryAttention& attention) {
  const kernels::AttentionShape& s = attention.shape;
  return absl::StrCat(gpu.name, ", ", s.batch, " x ", s.sequence, ", ", s.heads, " heads of ",
                      s.head_width, ", keys of ", s.key_heads(), ", in ", ToString(attention.type),
                      attention.same_bits ? ", the same bits" : "");
}

// Both kinds of gradients, in the memory that is planned for them.
TEST_F(CudnnAttention, HasEnginesForBothPassesInThePlannedMemory) {
  for (const Gpu& gpu : {kA100, kH100}) {
    for (const kernels::AttentionShape& shape : kShapes) {
      for (const bool same_bits : {false, true}) {
        for (const DType type : {DType::kBf16, DType::kF16}) {
          const LibraryAttention attention = {shape, type, same_bits};
          SCOPED_TRACE(TextOf(gpu, attention));
          EXPECT_THAT(EnginesOf(gpu, Pass::kForward, attention), IsOk());
          EXPECT_THAT(EnginesOf(gpu, Pass::kBackward, attention), IsOk());
        }
      }
    }
  }
}

// A shorter sequence is padded to blocks, where the plan would be too small if it were not.
TEST_F(CudnnAttention, PlansWhatTheEnginesOfAnA100WorkInAndLittleMore) {
  kernels::AttentionShape grouped = kShapes[0];
  grouped.kv_heads = 4;
  for (const kernels::AttentionShape& shape : {kShapes[0], grouped}) {
    for (const bool same_bits : {false, true}) {
      const LibraryAttention attention = {shape, DType::kBf16, same_bits};
      SCOPED_TRACE(TextOf(kA100, attention));
      const auto engines = EnginesOf(kA100, Pass::kBackward, attention);
      ASSERT_THAT(engines, IsOk());
      const int64_t planned = NeedsOf(Pass::kBackward, attention).workspace_bytes_max;
      for (const Engine& engine : *engines) {
        EXPECT_LE(engine.workspace_bytes, planned);
        EXPECT_GE(engine.workspace_bytes, planned - kernels::kLibraryTables) << engine.index;
      }
    }
  }
}

TEST_F(CudnnAttention, RefusesEnginesThatNeedMoreThanThePlan) {
  const LibraryAttention attention = {kShapes[0], DType::kBf16};
  const auto described = DescribeGpu(library(), JsonOf(kA100));
  const auto graph = AttentionGraph(library(), Pass::kBackward, attention, nullptr);
  ASSERT_THAT(graph, IsOk());
  EXPECT_THAT(
      FindEngines(library(), *graph, {.described = &*described}, {.workspace_bytes_max = 9}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("bytes, and 9 are planned")));
}

// It has the forward pass of such heads; a layer is its own in both passes or in none.
TEST_F(CudnnAttention, HasNoGradientOfHeadsOf256OnAnA100) {
  const LibraryAttention attention = {{.batch = 2, .sequence = 64, .heads = 4, .head_width = 256},
                                      DType::kBf16};
  EXPECT_THAT(EnginesOf(kA100, Pass::kForward, attention), IsOk());
  EXPECT_THAT(EnginesOf(kA100, Pass::kBackward, attention),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("has no engine")));
  EXPECT_THAT(EnginesOf(kH100, Pass::kBackward, attention), IsOk());
}

TEST_F(CudnnAttention, RefusesWhatItHasNotWithoutAskingItsEngines) {
  const auto refusal = [&](kernels::AttentionShape shape, DType type) {
    return AttentionGraph(library(), Pass::kForward, {shape, type}, nullptr).status();
  };
  const kernels::AttentionShape shape = {.batch = 1, .sequence = 8, .heads = 2, .head_width = 64};
  EXPECT_THAT(refusal(shape, DType::kBf16), IsOk());
  EXPECT_THAT(refusal(shape, DType::kF32),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("not in f32")));
  kernels::AttentionShape other = shape;
  other.head_width = 20;
  EXPECT_THAT(refusal(other, DType::kBf16),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("multiple of 8, not 20")));
  other = shape;
  other.heads = 6;
  other.kv_heads = 4;
  EXPECT_THAT(refusal(other, DType::kBf16),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("6 heads share the keys of 4")));
  other = shape;
  other.sequence = 1;
  EXPECT_THAT(refusal(other, DType::kBf16),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("2 tokens at least")));
}

TEST_F(CudnnAttention, TakesArgumentsInMemoryAndByValue) {
  int64_t memory = 0;
  float scale = 0.125f;
  const std::vector<Binding> bindings = {{kQ, &memory}, {kScale, &scale}};
  EXPECT_THAT(Arguments(library(), bindings, &memory), IsOk());
  EXPECT_THAT(Arguments(library(), {}, nullptr), ::testing::Not(IsOk()));
}

TEST_F(CudnnAttention, FailuresNameTheDescriptorAndTheAttribute) {
  const auto wrong = DescriptorBuilder(library(), CUDNN_BACKEND_TENSOR_DESCRIPTOR, "array Q")
                         .Set(Attribute<bool>{CUDNN_ATTR_TENSOR_DIMENSIONS, "dimensions"}, true)
                         .Finish();
  EXPECT_THAT(wrong, StatusIs(absl::StatusCode::kInternal,
                              HasSubstr("array Q, attribute dimensions: CUDNN_STATUS_BAD_PARAM")));
  const auto empty =
      DescriptorBuilder(library(), CUDNN_BACKEND_TENSOR_DESCRIPTOR, "array K").Finish();
  EXPECT_THAT(empty, StatusIs(absl::StatusCode::kInternal, HasSubstr("array K: CUDNN_STATUS")));
  EXPECT_THAT(DescribeGpu(library(), "{}"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("maxGridSize")));
}

}  // namespace
}  // namespace muster::cudnn
