#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "muster/layers.h"

namespace muster {
namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kWidth = 16;
constexpr auto kBytes = static_cast<int64_t>(kRows * kWidth * sizeof(float));  // of an activation

// Four maps, of which the second and the third may be frozen; the last two are an MLP.
struct FourMaps {
  FourMaps() {
    for (const char* name : {"a", "b", "up", "down"}) {
      maps.push_back(std::make_unique<Linear>(
          Scope(store) / name, Linear::Options{.inputs = kWidth, .outputs = kWidth}));
    }
  }
  void Freeze(absl::string_view prefix) {
    for (const auto& parameter : store.parameters()) {
      if (absl::StartsWith(parameter->name(), prefix)) parameter->Freeze();
    }
  }
  void Bind() {
    store.BindToOwnBuffers();
    store.Initialize(1);
  }
  Activation Forward(Tape& tape) const {
    const Tensor x = tape.pool().Allocate(DType::kF32, {kRows, kWidth});
    std::fill(x.span<float>().begin(), x.span<float>().end(), 0.5F);
    const Activation b = maps[1]->Forward(tape, maps[0]->Forward(tape, {.value = x}));
    return maps[3]->ForwardOntoActivated(tape, b,
                                         maps[2]->ForwardActivated(tape, b, Nonlinearity::kGelu));
  }
  // That the tape keeps of a forward pass beside its output.
  int64_t KeptBytes() {
    TensorPool pool;
    Tape tape(pool);
    const Activation y = Forward(tape);
    const auto kept = static_cast<int64_t>(pool.usage().bytes_in_use) - kBytes;
    return kept;
  }
  std::vector<float> GradientOfFirst() {
    TensorPool pool;
    Tape tape(pool);
    const Activation y = Forward(tape);
    const Tensor dy = pool.Allocate(DType::kF32, y.value.shape());
    std::fill(dy.span<float>().begin(), dy.span<float>().end(), 1.0F);
    tape.Backward(y, dy);
    const auto gradient = store.parameters()[0]->gradient().span<float>();
    return {gradient.begin(), gradient.end()};
  }

  ParameterStore store;
  std::vector<std::unique_ptr<Linear>> maps;
};

int64_t KeptWhereFrozen(const std::vector<std::string>& prefixes) {
  FourMaps model;
  for (const std::string& prefix : prefixes) model.Freeze(prefix);
  model.Bind();
  return model.KeptBytes();
}

TEST(Linear, KeepsItsInputForItsWeightsGradientAlone) {
  const int64_t all = 5 * kBytes;  // x, a's, b's, pre and gelu(pre)
  EXPECT_EQ(KeptWhereFrozen({}), all);
  EXPECT_EQ(KeptWhereFrozen({"b"}), all - kBytes);
  EXPECT_EQ(KeptWhereFrozen({"b.weight"}), all - kBytes);
  EXPECT_EQ(KeptWhereFrozen({"b.bias"}), all);
  EXPECT_EQ(KeptWhereFrozen({"down"}), all - kBytes) << "GELU's gradient needs what came before it";
  EXPECT_EQ(KeptWhereFrozen({"b", "up", "down"}), all - 3 * kBytes);
}

TEST(Linear, PassesOnTheSameGradientWhereItIsFrozen) {
  FourMaps learns, frozen;
  learns.Bind();
  for (const char* name : {"b.weight", "up", "down"}) frozen.Freeze(name);
  frozen.Bind();
  EXPECT_EQ(frozen.GradientOfFirst(), learns.GradientOfFirst());
  const auto bias_of = [](FourMaps& model) {
    const auto gradient = model.store.parameters()[3]->gradient().span<float>();
    return std::vector<float>(gradient.begin(), gradient.end());
  };
  EXPECT_EQ(bias_of(frozen), bias_of(learns));
}

}  // namespace
}  // namespace muster
