// GELU beside a product on an emulated GPU, where each piece of work takes as long as any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/emulated_products.h"
#include "tests/unit/worker_runtime/cuda/device_numbers.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

using Epilogues = EmulatedProducts::Epilogues;
constexpr int64_t kRows = 8, kInputs = 24, kOutputs = 16;

// A device with an array for each side of a layer.
class Layer {
 public:
  Layer(Epilogues epilogues, bool times_gelu) : emulated_({.seed = 3}) {
    auto counting = std::make_unique<CountingCuda>(emulated_);
    calls_ = counting.get();
    device_ = *MakeCudaDevice({.cuda = std::move(counting),
                               .products = std::make_unique<EmulatedProducts>(epilogues),
                               .operations = &CudaOperations,
                               .times_gelu = times_gelu});
    pool_ = std::make_unique<TensorPool>(*device_);
    x_ = Make("x", kRows * kInputs).Reshaped({kRows, kInputs});
    weight_ = Make("w", kOutputs * kInputs).Reshaped({kOutputs, kInputs});
    bias_ = Make("b", kOutputs);
    dy_ = Make("dy", kRows * kOutputs).Reshaped({kRows, kOutputs});
    pre_ = pool_->Allocate(DType::kBf16, {kRows, kOutputs});
    gelu_ = pool_->Allocate(DType::kBf16, {kRows, kOutputs});
    dpre_ = pool_->Allocate(DType::kBf16, {kRows, kInputs});
  }

  struct Kernels {
    int64_t forward, backward;
    friend bool operator==(const Kernels&, const Kernels&) = default;
  };
  // One pass each way.
  Kernels Pass(Queue& queue) {
    const int64_t before = queue.num_kernels();
    const Operations& operations = device_->operations(DType::kBf16);
    operations.linear_gelu(queue, {.x = x_, .weight = weight_, .bias = bias_}, pre_, gelu_);
    const int64_t between = queue.num_kernels();
    operations.gelu_linear_input(queue, dy_, weight_, x_, dpre_);
    return {between - before, queue.num_kernels() - between};
  }
  Kernels Pass() {
    Queue queue(*device_, pool_.get());
    return Pass(queue);
  }
  std::vector<float> Numbers() const {
    std::vector<float> all = OnHost(*device_, pre_);
    for (const Tensor& more : {gelu_, dpre_}) {
      for (const float number : OnHost(*device_, more)) all.push_back(number);
    }
    return all;
  }
  const Device& device() const { return *device_; }
  CountingCuda& calls() { return *calls_; }

 private:
  Tensor Make(const char* name, int64_t count) {
    return OnDevice(*pool_, DType::kBf16, RandomNumbers<float>(count, name));
  }

  EmulatedCuda emulated_;
  CountingCuda* calls_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TensorPool> pool_;
  Tensor x_, weight_, bias_, dy_, pre_, gelu_, dpre_;
};

constexpr Layer::Kernels kInOnePass = {1, 1};
constexpr Layer::Kernels kInPasses = {2, 2};  // the bias still on the product's way
constexpr Layer::Kernels kAllInPasses = {3, 2};

TEST(GeluWays, TheQuickerOneIsKept) {
  Layer quick(Epilogues::kInOnePass, /*times_gelu=*/true);
  quick.Pass();
  EXPECT_EQ(quick.Pass(), kInOnePass);
  Layer slow(Epilogues::kSlowGelu, /*times_gelu=*/true);
  slow.Pass();
  EXPECT_EQ(slow.Pass(), kInPasses);
}

TEST(GeluWays, AreTimedOnceForAShape) {
  for (const Epilogues epilogues : {Epilogues::kInOnePass, Epilogues::kSlowGelu}) {
    Layer layer(epilogues, /*times_gelu=*/true);
    layer.calls().Mark();
    layer.Pass();
    EXPECT_GT(layer.calls().since_mark().host_waits, 0);
    layer.calls().Mark();
    layer.Pass();
    EXPECT_EQ(layer.calls().since_mark().host_waits, 0);
  }
}

TEST(GeluWays, AreNotTimedWhereBitsMustBeTheSameInEveryRun) {
  Layer layer(Epilogues::kSlowGelu, /*times_gelu=*/false);
  layer.calls().Mark();
  layer.Pass();
  EXPECT_EQ(layer.calls().since_mark().host_waits, 0);
  EXPECT_EQ(layer.Pass(), kInOnePass);
}

TEST(GeluWays, AreNotTimedWithinACaptureButAfterIt) {
  Layer layer(Epilogues::kSlowGelu, /*times_gelu=*/true);
  Queue queue(layer.device());
  ASSERT_THAT(layer.device().BeginCapture(queue), IsOk());
  EXPECT_EQ(layer.Pass(queue), kInOnePass);
  ASSERT_THAT(layer.device().EndCapture(queue), IsOk());
  layer.Pass();
  EXPECT_EQ(layer.Pass(), kInPasses);
}

TEST(GeluWays, HaveTheNumbersOfEachOther) {
  Layer once(Epilogues::kInOnePass, /*times_gelu=*/false);
  once.Pass();
  for (const Epilogues epilogues :
       {Epilogues::kSlowGelu, Epilogues::kNone, Epilogues::kRefusedWhenTried}) {
    Layer layer(epilogues, /*times_gelu=*/true);
    layer.Pass();
    EXPECT_EQ(layer.Pass(), epilogues == Epilogues::kSlowGelu ? kInPasses : kAllInPasses);
    EXPECT_LE(RelativeError(layer.Numbers(), once.Numbers()), 1e-2);
  }
}

}  // namespace
}  // namespace muster::testing
