// A GPU as a device of tensors beside the host: over an emulated GPU (cuda_device_test.cc) and on a
// real one (tests/gpu/cuda_device_gpu_test.cc). A file of tests says how one is opened: OpenDevice
// is its to define.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/decoder.h"
#include "muster/sixteen_bits.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/cuda/device_numbers.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "tests/unit/worker_runtime/operations_on.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/sgd.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/kernels/update_decision.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {

// A device, or null and why where there is no GPU. `seed` sets the order where it can be chosen.
std::unique_ptr<Device> OpenDevice(uint64_t seed, std::string& why);

// A small GPT whose parameters lie on a device, each array by itself.
class GptOnDevice {
 public:
  // The vocabulary is odd, as GPT-2's.
  static constexpr DecoderConfig kConfig = {
      .layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 27};

  // `gradients`: their type; the host's passes keep that of the parameters.
  GptOnDevice(const Device& device, DType dtype, DType gradients)
      : device_(device), store(dtype), pool(device) {
    gpt = *Decoder::Create(kConfig, store);
    for (const auto& parameter : store.parameters()) {
      std::vector<float> numbers(parameter->num_elements());
      InitializeElements(
          *parameter, 1, 0,
          Tensor::Borrow(numbers.data(), DType::kF32, {static_cast<int64_t>(numbers.size())}));
      // Away from 0 and 1, that biases and norms begin with.
      for (float& number : numbers) number = FromBf16(ToBf16(3 * number + 0.05f));
      parameter->BindValue(OnDevice(pool, dtype, numbers).Reshaped(parameter->shape()));
      parameter->BindGradient(pool.Allocate(gradients, parameter->shape()));
    }
  }

  // A forward and a backward pass; the loss.
  double Pass() {
    const auto tokens = RandomTokens(33, kConfig.vocabulary);
    const absl::Span<const int32_t> all(tokens);
    Tape tape(pool);
    store.ForgetGradients();
    const Loss loss = gpt->ComputeLoss(tape, {all.first(32), 2, 16}, all.subspan(1, 32));
    tape.Backward(loss.output);
    EXPECT_THAT(tape.status(), IsOk());
    EXPECT_EQ(loss.num_tokens, 32);
    return loss.total.empty() ? loss.sum : NumberOnHost(device_, loss.total);
  }
  std::vector<float> Gradients() {
    std::vector<float> all;
    for (const auto& parameter : store.parameters()) {
      const auto one = OnHost(device_, parameter->gradient());
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  const Device& device_;

 public:
  ParameterStore store;
  TensorPool pool;
  std::unique_ptr<Decoder> gpt;
};

class CudaDeviceContract : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    std::string why;
    device_ = OpenDevice(GetParam(), why);
    if (device_ == nullptr) GTEST_SKIP() << why;
    pool_ = std::make_unique<TensorPool>(*device_);
    queue_ = std::make_unique<Queue>(*device_, pool_.get());
  }
  const Operations& operations(DType dtype) const { return device_->operations(dtype); }
  Tensor Make(DType dtype, const std::vector<float>& numbers) {
    return OnDevice(*pool_, dtype, numbers);
  }
  std::vector<float> Read(const Tensor& x) { return OnHost(*device_, x); }
  Tensor MakeF64(const std::vector<double>& numbers) {
    const Tensor x = pool_->Allocate(DType::kF64, {static_cast<int64_t>(numbers.size())});
    device_->Upload(*queue_, numbers.data(), x.raw_data(), x.num_bytes());
    return x;
  }

  // The device goes last.
  std::unique_ptr<Device> device_;
  std::unique_ptr<TensorPool> pool_;
  std::unique_ptr<Queue> queue_;
};

TEST_P(CudaDeviceContract, BytesGoUpInPiecesAndComeDown) {
  for (const size_t count : {1, 1000, 3'000'000}) {
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i);
    EXPECT_EQ(Read(Make(DType::kF32, numbers)), numbers);
  }
}

TEST_P(CudaDeviceContract, WhatIsUploadedMayBeChangedAtOnce) {
  const Tensor x = pool_->Allocate(DType::kF32, {1});
  const Tensor all = pool_->Allocate(DType::kF32, {50});
  for (int i = 0; i < 50; ++i) {
    auto number = static_cast<float>(i);
    device_->Upload(*queue_, &number, x.raw_data(), sizeof(number));
    number = -1;
    operations(DType::kF32).copy(*queue_, x, all.Slice(i, {1}));
  }
  const auto numbers = Read(all);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(numbers[i], i);
}

TEST_P(CudaDeviceContract, FillsClearsCopiesAndCasts) {
  const auto x = RandomNumbers<float>(37, "x");
  std::vector<float> rounded;
  for (const float number : x) rounded.push_back(FromBf16(ToBf16(number)));
  const Tensor wide = Make(DType::kF32, x);
  const Tensor narrow = pool_->Allocate(DType::kBf16, {37});
  operations(DType::kF32).cast(*queue_, wide, narrow);
  EXPECT_EQ(Read(narrow), rounded);
  operations(DType::kBf16).cast(*queue_, narrow, wide);
  EXPECT_EQ(Read(wide), rounded);
  const Tensor half = pool_->Allocate(DType::kF16, {37});
  operations(DType::kF32).cast(*queue_, Make(DType::kF32, x), half);
  EXPECT_EQ(Read(half), Read(Make(DType::kF16, x)));
  const Tensor back = pool_->Allocate(DType::kF32, {37});
  operations(DType::kF16).cast(*queue_, half, back);
  EXPECT_EQ(Read(back), Read(half));
  const Tensor part = narrow.Slice(8, {10});
  operations(DType::kBf16).fill(*queue_, 1.5, part);
  EXPECT_EQ(Read(part), std::vector<float>(10, 1.5f));
  EXPECT_EQ(Read(narrow)[7], rounded[7]);
  operations(DType::kBf16).clear(*queue_, part);
  EXPECT_EQ(Read(part), std::vector<float>(10));
  operations(DType::kBf16).copy(*queue_, narrow.Slice(18, {10}), part);
  EXPECT_EQ(Read(part), std::vector<float>(rounded.begin() + 18, rounded.begin() + 28));
}

TEST_P(CudaDeviceContract, ALaneThatIsHeldUpByAnEventSeesWhatTheOtherDid) {
  Queue other(*device_, pool_.get(), Queue::Lane::kCommunication);
  const std::unique_ptr<Event> event = device_->MakeEvent();
  const Tensor x = Make(DType::kF32, {0});
  const Tensor y = Make(DType::kF32, {0});
  for (int i = 1; i <= 10; ++i) {
    operations(DType::kF32).fill(*queue_, i, x);
    event->Record(*queue_);
    event->HoldUp(other);
    device_->CopyBytes(other, x.raw_data(), y.raw_data(), sizeof(float));
    event->Record(other);
    event->HoldUp(*queue_);
  }
  EXPECT_EQ(Read(y), std::vector<float>{10});
}

// Both lanes work in it.
TEST_P(CudaDeviceContract, WorkThatWasCapturedRunsOnlyWhenItIsPutOnAQueueAndAsOftenAsItIs) {
  Queue other(*device_, pool_.get(), Queue::Lane::kCopy);
  const std::unique_ptr<Event> begun = device_->MakeEvent(), done = device_->MakeEvent();
  const Tensor x = Make(DType::kF32, {1}), y = Make(DType::kF32, {0});
  ASSERT_TRUE(device_->captures());
  ASSERT_THAT(device_->BeginCapture(*queue_), IsOk());
  operations(DType::kF32).add(*queue_, x, x, x);
  begun->Record(*queue_);
  begun->HoldUp(other);
  device_->CopyBytes(other, x.raw_data(), y.raw_data(), sizeof(float));
  done->Record(other);
  done->HoldUp(*queue_);
  const auto captured = device_->EndCapture(*queue_);
  ASSERT_THAT(captured, IsOk());
  const CapturedWork* const work = captured->get();
  EXPECT_EQ(Read(x), std::vector<float>{1});
  for (int i = 0; i < 3; ++i) work->PutOn(*queue_);
  EXPECT_EQ(Read(y), std::vector<float>{8});
  operations(DType::kF32).fill(*queue_, 5, x);
  work->PutOn(*queue_);
  EXPECT_EQ(Read(y), std::vector<float>{10});
}

TEST_P(CudaDeviceContract, ProductsOfEveryShapeAddUpInFloat) {
  constexpr int64_t kM = 5, kN = 7, kK = 24;
  const auto a = RandomNumbers<float>(kM * kK, "a");
  const auto b = RandomNumbers<float>(kK * kN, "b");
  const auto before = RandomNumbers<float>(kM * kN, "c");
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Tensor on_a = Make(dtype, a), on_b = Make(dtype, b);
    const auto wide_a = Read(on_a), wide_b = Read(on_b);
    for (int shape = 0; shape < 16; ++shape) {
      const Product p = {.m = kM,
                         .n = kN,
                         .k = kK,
                         .transpose_a = (shape & 1) != 0,
                         .transpose_b = (shape & 2) != 0,
                         .accumulate = (shape & 4) != 0};
      const Tensor c = Make((shape & 8) != 0 ? DType::kF32 : dtype, before);
      std::vector<float> expected = p.accumulate ? Read(c) : std::vector<float>(kM * kN);
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          double sum = expected[i * kN + j];
          for (int64_t k = 0; k < kK; ++k) {
            sum += static_cast<double>(wide_a[p.transpose_a ? k * kM + i : i * kK + k]) *
                   wide_b[p.transpose_b ? j * kK + k : k * kN + j];
          }
          expected[i * kN + j] = static_cast<float>(sum);
        }
      }
      operations(dtype).multiply(*queue_, p, on_a, on_b, c);
      EXPECT_LE(RelativeError(Read(c), expected), c.dtype() == DType::kF32 ? 2e-6 : 4.5e-3)
          << ToString(dtype) << " " << shape;
    }
  }
}

// The operations of a linear layer and of the GELU before it or behind it, each on arrays of its
// own.
class LinearOn {
 public:
  static constexpr int64_t kRows = 5, kInputs = 24, kOutputs = 16;

  // `in_passes`: one kernel after another, whatever the device has in one.
  LinearOn(const Device& device, DType dtype, DType gradients, bool in_passes)
      : device_(device), pool_(device), queue_(device, &pool_), dtype_(dtype) {
    const Tensor x = Make("x", kRows, kInputs), weight = Make("w", kOutputs, kInputs);
    const Tensor bias = Make("b", 1, kOutputs).Reshaped({kOutputs});
    const Tensor residual = Make("r", kRows, kOutputs), dy = Make("dy", kRows, kOutputs);
    y = Make("y", kRows, kOutputs), onto = Make("onto", kRows, kOutputs);
    plain = Make("y", kRows, kOutputs), plain_onto = Make("onto", kRows, kOutputs);
    pre = Make("pre", kRows, kOutputs), gelu = Make("gelu", kRows, kOutputs);
    dpre = Make("dpre", kRows, kInputs);
    dweight = Make("dw", kOutputs, kInputs, gradients);
    dbias = Make("db", 1, kOutputs, gradients).Reshaped({kOutputs});
    const Operations& table = device.operations(dtype);
    const auto forward = in_passes ? &LinearInPasses::LinearForward : table.linear_forward;
    const auto with_gelu = in_passes ? &LinearInPasses::LinearGelu : table.linear_gelu;
    const auto input = in_passes ? &LinearInPasses::GeluLinearInput : table.gelu_linear_input;
    const auto weights = in_passes ? &LinearInPasses::LinearWeight : table.linear_weight;
    const Operations::Linear in = {.x = x, .weight = weight, .bias = bias};
    forward(queue_, in, {}, y);
    forward(queue_, in, residual, onto);
    const Operations::Linear unbiased = {.x = x, .weight = weight, .bias = {}};
    forward(queue_, unbiased, {}, plain);
    forward(queue_, unbiased, residual, plain_onto);
    with_gelu(queue_, in, pre, gelu);
    input(queue_, dy, weight, x, dpre);
    weights(queue_, dy, x, {.to = dweight, .accumulate = false},
            {.to = dbias, .accumulate = false});
    weights(queue_, dy, x, {.to = dweight, .accumulate = true}, {.to = dbias, .accumulate = true});
    weights(queue_, dy, x, {.to = Tensor(), .accumulate = false},
            {.to = dbias, .accumulate = true});
    weights(queue_, dy, x, {.to = dweight, .accumulate = true},
            {.to = Tensor(), .accumulate = false});
  }
  std::vector<float> Read(const Tensor& x) const { return OnHost(device_, x); }
  int64_t num_kernels() const { return queue_.num_kernels(); }

  // The plain ones have no bias.
  Tensor y, onto, plain, plain_onto, pre, gelu, dpre, dweight, dbias;

 private:
  Tensor Make(const char* name, int64_t rows, int64_t width) {
    return Make(name, rows, width, dtype_);
  }
  Tensor Make(const char* name, int64_t rows, int64_t width, DType dtype) {
    return OnDevice(pool_, dtype, RandomNumbers<float>(rows * width, name)).Reshaped({rows, width});
  }

  const Device& device_;
  TensorPool pool_;
  Queue queue_;
  const DType dtype_;
};

// Results in float are compared with the host's too. cuBLASLt's own GELU, which is used where it is
// quicker, was 3.7e-6 from the host's on an H100 (tests/gpu/RESULTS.md).
TEST_P(CudaDeviceContract, WhatStandsAroundAProductIsTheSameInOnePassAndInSeveral) {
  struct Part {
    const char* name;
    Tensor LinearOn::*of;
    double error_max = 3e-6;  // in float
  };
  const std::vector<Part> parts = {{"y", &LinearOn::y},
                                   {"onto", &LinearOn::onto},
                                   {"plain", &LinearOn::plain},
                                   {"plain onto", &LinearOn::plain_onto},
                                   {"pre", &LinearOn::pre},
                                   {"gelu", &LinearOn::gelu, 1e-5},
                                   {"dpre", &LinearOn::dpre, 1e-5},
                                   {"dweight", &LinearOn::dweight},
                                   {"dbias", &LinearOn::dbias}};
  for (const auto& [dtype, gradients] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBf16, DType::kBf16},
        std::pair{DType::kBf16, DType::kF32}, std::pair{DType::kF16, DType::kF32}}) {
    const LinearOn once(*device_, dtype, gradients, /*in_passes=*/false);
    const LinearOn in_passes(*device_, dtype, gradients, /*in_passes=*/true);
    for (const Part& part : parts) {
      const auto numbers = once.Read(once.*part.of);
      EXPECT_LE(RelativeError(numbers, in_passes.Read(in_passes.*part.of)),
                dtype == DType::kF32 ? part.error_max : 2e-2)
          << part.name << " " << ToString(dtype) << " " << ToString(gradients);
      if (dtype != DType::kF32) continue;
      const LinearOn host(Device::Cpu(), dtype, gradients, /*in_passes=*/false);
      EXPECT_LE(RelativeError(numbers, host.Read(host.*part.of)), part.error_max) << part.name;
    }
  }
}

// The loss of a tied head, by LmHeadLoss or of all logits at once; twice, of which the second is
// added under a scale.
struct HeadOutcome {
  double loss = 0;
  std::vector<float> dx, dtable;
};
inline HeadOutcome RunHead(const Device& device, DType dtype, DType gradients, bool at_once,
                           int64_t vocabulary) {
  constexpr int64_t kRows = 11, kWidth = 16;
  TensorPool pool(device);
  ParameterStore store(dtype);
  Parameter& table = store.Declare({.name = "table", .shape = {vocabulary, kWidth}});
  const auto make = [&](const char* name, int64_t rows) {
    return OnDevice(pool, dtype, RandomNumbers<float>(rows * kWidth, name))
        .Reshaped({rows, kWidth});
  };
  table.BindValue(make("table", vocabulary));
  table.BindGradient(pool.Allocate(gradients, table.shape()));
  auto targets = RandomTokens(kRows, vocabulary);
  targets[3] = kernels::kIgnoredTarget;
  Tape tape(pool);
  HeadOutcome outcome;
  for (const double scale : {1.0, 0.5}) {
    const Activation x = tape.Watch(make("x", kRows));
    const Loss loss = at_once ? CrossEntropy(tape, LmHead(tape, x, table), targets)
                              : LmHeadLoss(tape, x, table, targets);
    EXPECT_EQ(loss.num_tokens, kRows - 1);
    tape.Backward(loss.output, scale);
    EXPECT_THAT(tape.status(), IsOk());
    outcome.loss = loss.total.empty() ? loss.sum : NumberOnHost(device, loss.total);
    outcome.dx = OnHost(device, tape.TakeGradient(x));
  }
  outcome.dtable = OnHost(device, table.gradient());
  return outcome;
}

TEST_P(CudaDeviceContract, TheLossOfATiedHeadIsThatOfAllLogitsUnderAnyScale) {
  for (const int64_t vocabulary : {40, 43}) {
    const auto run = [&](const Device& device, DType dtype, DType gradients, bool at_once) {
      return RunHead(device, dtype, gradients, at_once, vocabulary);
    };
    for (const auto& [dtype, gradients] :
         {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBf16, DType::kBf16},
          std::pair{DType::kBf16, DType::kF32}, std::pair{DType::kF16, DType::kF32}}) {
      const double tolerance = dtype == DType::kF32 ? 3e-6 : 2e-2;
      const HeadOutcome some = run(*device_, dtype, gradients, /*at_once=*/false);
      const HeadOutcome all = run(*device_, dtype, gradients, /*at_once=*/true);
      EXPECT_NEAR(some.loss / all.loss, 1, tolerance);
      EXPECT_LE(RelativeError(some.dx, all.dx), tolerance);
      EXPECT_LE(RelativeError(some.dtable, all.dtable), tolerance) << ToString(gradients);
      if (dtype != DType::kF32) continue;
      const HeadOutcome host = run(Device::Cpu(), dtype, gradients, /*at_once=*/false);
      EXPECT_NEAR(some.loss / host.loss, 1, tolerance);
      EXPECT_LE(RelativeError(some.dx, host.dx), tolerance);
      EXPECT_LE(RelativeError(some.dtable, host.dtable), tolerance);
    }
  }
}

// Those of tokens that nearly are not expected are 2e-9, which is nothing in f16.
TEST_P(CudaDeviceContract, GradientsOfATiedHeadInF16AreScaledBeforeTheyAreRounded) {
  constexpr int64_t kWidth = 16, kVocabulary = 43;
  constexpr double kScale = 32768, kLogit = 20;
  TensorPool pool(*device_);
  ParameterStore store(DType::kF16);
  Parameter& table = store.Declare({.name = "table", .shape = {kVocabulary, kWidth}});
  std::vector<float> rows(kVocabulary * kWidth);
  std::fill_n(rows.begin(), kWidth, static_cast<float>(kLogit) / kWidth);
  table.BindValue(OnDevice(pool, DType::kF16, rows).Reshaped(table.shape()));
  table.BindGradient(pool.Allocate(DType::kF32, table.shape()));
  Tape tape(pool);
  const Tensor ones = OnDevice(pool, DType::kF16, std::vector<float>(kWidth, 1));
  const std::vector<int32_t> targets = {0};
  const Activation x = tape.Watch(ones.Reshaped({1, kWidth}));
  tape.Backward(LmHeadLoss(tape, x, table, targets).output, kScale);
  const std::vector<float> gradients = OnHost(*device_, table.gradient());
  EXPECT_NEAR(gradients.back() / kScale / std::exp(-kLogit), 1, 1e-2);
}

TEST_P(CudaDeviceContract, OperationsGiveTheHostsNumbers) {
  for (const auto& [name, call] : OperationsOn::Calls()) {
    SCOPED_TRACE(name);
    const OperationsOn host(Device::Cpu(), DType::kF32, DType::kF32, call);
    ExpectNear(OperationsOn(*device_, DType::kF32, DType::kF32, call), host, 3e-6);
    for (const DType gradients : {DType::kBf16, DType::kF32}) {
      ExpectNear(OperationsOn(*device_, DType::kBf16, gradients, call), host, 4.5e-3);
    }
    ExpectNear(OperationsOn(*device_, DType::kF16, DType::kF32, call), host, 6e-4);
  }
}

TEST_P(CudaDeviceContract, AGptHasTheHostsLossAndGradientsInFloat) {
  GptOnDevice host(Device::Cpu(), DType::kF32, DType::kF32);
  GptOnDevice gpu(*device_, DType::kF32, DType::kF32);
  EXPECT_NEAR(gpu.Pass() / host.Pass(), 1, 1e-6);
  EXPECT_LT(RelativeError(gpu.Gradients(), host.Gradients()), 1e-5);
}

// Weights are the same to the bit, and what is between them is rounded to 8 digits.
TEST_P(CudaDeviceContract, AGptInBf16HasNearlyThoseOfFloatWhateverItsGradientsAreKeptIn) {
  GptOnDevice host(Device::Cpu(), DType::kF32, DType::kF32);
  const double loss = host.Pass();
  for (const DType gradients : {DType::kBf16, DType::kF32}) {
    GptOnDevice gpu(*device_, DType::kBf16, gradients);
    EXPECT_NEAR(gpu.Pass() / loss, 1, 3e-3);
    EXPECT_LT(RelativeError(gpu.Gradients(), host.Gradients()), 3e-2) << ToString(gradients);
  }
}

TEST_P(CudaDeviceContract, AGptInF16HasNearlyThoseOfFloat) {
  GptOnDevice host(Device::Cpu(), DType::kF32, DType::kF32);
  const double loss = host.Pass();
  for (const DType gradients : {DType::kF16, DType::kF32}) {
    GptOnDevice gpu(*device_, DType::kF16, gradients);
    EXPECT_NEAR(gpu.Pass() / loss, 1, 1e-3);
    EXPECT_LT(RelativeError(gpu.Gradients(), host.Gradients()), 1e-2) << ToString(gradients);
  }
}

TEST_P(CudaDeviceContract, TheSamePassHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    GptOnDevice gpu(*device_, dtype, DType::kF32);
    const double loss = gpu.Pass();
    const auto gradients = gpu.Gradients();
    EXPECT_EQ(gpu.Pass(), loss);
    EXPECT_TRUE(SameBits(gpu.Gradients(), gradients));
  }
}

// The norm of a gradient, what it decides, and the update: as on the host, to the bit.
class UpdateOn {
 public:
  UpdateOn(const Device& device, int64_t n) : device_(device), pool_(device), queue_(device) {
    const auto make = [&](const char* name, bool positive) {
      auto numbers = RandomNumbers<float>(n, name);
      for (float& number : numbers) number = positive ? std::fabs(number) : number;
      return OnDevice(pool_, DType::kF32, numbers);
    };
    gradient = make("gradient", false);
    value = make("value", false);
    first = make("first", false);
    second = make("second", true);
    decision_ = pool_.Allocate(DType::kU8, {sizeof(kernels::UpdateDecision)});
    const kernels::UpdateDecision before = {.updates = 2};
    device.Upload(queue_, &before, decision_.raw_data(), sizeof(before));
  }
  kernels::UpdateDecision Decide(const kernels::UpdateSettings& settings) {
    const Operations& f32 = device_.operations(DType::kF32);
    const int64_t blocks = kernels::NumNormBlocks(gradient.num_elements());
    const Tensor partials = pool_.Allocate(DType::kF64, {blocks});
    const Tensor totals = pool_.Allocate(DType::kF64, {5});
    const double given[5] = {0, 100, 8, 3, 0.9};
    device_.Upload(queue_, given, totals.raw_data(), sizeof(given));
    f32.squares(queue_, gradient, partials);
    f32.tree_sum(queue_, partials, totals.Slice(0, {1}));
    f32.decide_update(queue_, settings,
                      {.squares = totals.Slice(0, {1}),
                       .tokens = totals.Slice(1, {1}),
                       .loss_scale = totals.Slice(2, {1}),
                       .loss = totals.Slice(3, {1}),
                       .learning_rate = totals.Slice(4, {1})},
                      decision_);
    kernels::UpdateDecision decided;
    EXPECT_THAT(device_.Download(queue_, decision_.raw_data(), &decided, sizeof(decided)), IsOk());
    return decided;
  }
  void AdamW(const kernels::AdamWStep& step) { AdamW(step, Tensor()); }
  // `rounded` follows.
  void AdamW(const kernels::AdamWStep& step, const Tensor& rounded) {
    device_.operations(DType::kF32)
        .adamw(queue_, Updates(step),
               {.gradient = gradient,
                .value = value,
                .first_moment = first,
                .second_moment = second,
                .rounded = rounded,
                .draws = kDraws});
  }
  void Round(const Tensor& to) {
    device_.operations(DType::kF32).round_by_draws(queue_, decision_, value, kDraws, to);
  }
  Tensor Narrow() { return pool_.Allocate(DType::kBf16, {value.num_elements()}); }
  void Sgd(const kernels::SgdStep& step) {
    device_.operations(DType::kF32)
        .sgd(queue_, step, Updates({.weight_decay = 0}), gradient, value,
             step.momentum == 0 ? Tensor() : first);
  }
  std::vector<float> Read(const Tensor& x) const { return OnHost(device_, x); }

  Tensor gradient, value, first, second;

 private:
  // One group.
  Operations::Updates Updates(const kernels::AdamWStep& step) {
    run_ = {.end = value.num_elements()};
    step_ = step;
    return {.runs = {&run_, 1}, .steps = {&step_, 1}, .decisions = decision_};
  }

  static constexpr kernels::RoundingDraws kDraws = {
      .key_low = 5, .key_high = 6, .first_element = 64};
  const Device& device_;
  TensorPool pool_;
  Queue queue_;
  Tensor decision_;
  kernels::UpdateRun run_;
  kernels::AdamWStep step_;
};

TEST_P(CudaDeviceContract, UpdatesHaveTheHostsBits) {
  const kernels::AdamWStep step = {.learning_rate = 1e-2, .beta2 = 0.95, .weight_decay = 0.1};
  for (const double max_norm : {0.0, 0.01}) {
    UpdateOn host(Device::Cpu(), 5000), gpu(*device_, 5000);
    const kernels::UpdateSettings settings = {.update = step, .max_norm = max_norm};
    const auto expected = host.Decide(settings);
    const auto decided = gpu.Decide(settings);
    EXPECT_EQ(decided.norm, expected.norm);
    EXPECT_EQ(decided.gradient_scale, expected.gradient_scale);
    EXPECT_EQ(decided.updates, 3);
    EXPECT_EQ(decided.skipped, 0);
    host.AdamW(step);
    gpu.AdamW(step);
    for (const auto part : {&UpdateOn::value, &UpdateOn::first, &UpdateOn::second}) {
      EXPECT_TRUE(SameBits(gpu.Read(gpu.*part), host.Read(host.*part)));
    }
    for (const kernels::SgdStep& sgd : std::vector<kernels::SgdStep>{
             {}, {.momentum = 0.9}, {.momentum = 0.9, .nesterov = true}}) {
      host.Sgd(sgd);
      gpu.Sgd(sgd);
      EXPECT_TRUE(SameBits(gpu.Read(gpu.value), host.Read(host.value)));
      EXPECT_TRUE(SameBits(gpu.Read(gpu.first), host.Read(host.first)));
    }
  }
}

// Those that the update rounds on its way, and those that are rounded of masters that are there.
TEST_P(CudaDeviceContract, ValuesFollowTheirMastersByTheHostsDraws) {
  const kernels::AdamWStep step = {.learning_rate = 1e-2};
  UpdateOn host(Device::Cpu(), 2501), gpu(*device_, 2501);
  std::vector<std::vector<float>> read;
  for (UpdateOn* on : {&host, &gpu}) {
    on->Decide({.update = step});
    const Tensor on_the_way = on->Narrow(), of_masters = on->Narrow();
    on->AdamW(step, on_the_way);
    on->Round(of_masters);
    read.push_back(on->Read(on_the_way));
    read.push_back(on->Read(of_masters));
  }
  for (const auto& values : read) EXPECT_TRUE(SameBits(values, read[0]));
  EXPECT_FALSE(SameBits(read[0], gpu.Read(gpu.value)));
}

TEST_P(CudaDeviceContract, AGradientThatIsNoNumberChangesNothing) {
  UpdateOn gpu(*device_, 100);
  const auto value = gpu.Read(gpu.value);
  Queue queue(*device_);
  operations(DType::kF32).fill(queue, std::nan(""), gpu.gradient.Slice(99, {1}));
  EXPECT_EQ(gpu.Decide({}).skipped, 1);
  gpu.AdamW({});
  gpu.Sgd({});
  EXPECT_TRUE(SameBits(gpu.Read(gpu.value), value));
}

TEST_P(CudaDeviceContract, TextIsTheHostsText) {
  GptOnDevice host(Device::Cpu(), DType::kF32, DType::kF32);
  GptOnDevice gpu(*device_, DType::kF32, DType::kF32);
  const std::vector<int32_t> prompt = {1, 2, 3};
  const GenerateOptions options = {.num_tokens = 20, .temperature = 0};
  const auto text = Generate(*gpu.gpt, gpu.pool, prompt, options);
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(*text, *Generate(*host.gpt, host.pool, prompt, options));
}

TEST_P(CudaDeviceContract, WhatAKernelCannotDoIsSaidWhenTheHostReads) {
  const kernels::AttentionShape shape = {.batch = 1, .sequence = 2, .heads = 1, .head_width = 200};
  const Tensor qkv = Make(DType::kF32, std::vector<float>(1200));
  const Tensor out = pool_->Allocate(DType::kF32, {400});
  const Tensor saved = pool_->Allocate(DType::kF32, {2, 2});
  operations(DType::kF32).attention_forward(*queue_, shape, qkv, out, saved, out);
  float number = 0;
  EXPECT_THAT(
      device_->Download(*queue_, out.raw_data(), &number, sizeof(number)),
      StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("heads of more than 128")));
}

}  // namespace muster::testing
