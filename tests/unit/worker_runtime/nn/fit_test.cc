// Shapes that do not fit: a forward pass that fails with a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/decoder.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

class Fit : public ::testing::Test {
 protected:
  Fit()
      : linear_(Scope(store_) / "fc", {.inputs = 6, .outputs = 6}),
        norm_(Scope(store_) / "ln", 6),
        embedding_(Scope(store_), {.vocabulary = 9, .context = 4, .width = 6}) {
    store_.BindToOwnBuffers();
    store_.Initialize(1);
  }
  // What `forward` of an input of `shape` says, in a training pass and in a recomputed region.
  void ExpectRefused(Shape shape, const std::string& sentence,
                     const std::function<Activation(Tape&, const Activation&)>& forward) {
    for (const bool recompute : {false, true}) {
      Tape tape(pool_);
      const Activation x = tape.Watch(pool_.Allocate(DType::kF32, shape));
      Activation y = recompute ? tape.Recomputed(x, forward) : forward(tape, x);
      // Nothing makes anything of what was refused.
      y = linear_.ForwardOnto(tape, y,
                              norm_.Forward(tape, Nonlinear(Nonlinearity::kGelu).Forward(tape, y)));
      EXPECT_TRUE(
          CrossEntropy(tape, LmHead(tape, y, embedding_.token_table()), {}).output.value.empty());
      EXPECT_THAT(tape.status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(sentence)));
      tape.Clear();
      EXPECT_THAT(tape.status(), IsOk());
    }
  }

  ParameterStore store_;
  TensorPool pool_;
  const Linear linear_;
  const Norm norm_;
  const Embedding embedding_;
};

TEST_F(Fit, OfAMatrixIsToldByItsName) {
  ExpectRefused({2, 3, 5}, "fc.weight: the input is [2, 3, 5], and its last size must be 6",
                [&](Tape& tape, const Activation& x) { return linear_.Forward(tape, x); });
  ExpectRefused({2, 5}, "fc.weight: the input is [2, 5], and its last size must be 6",
                [&](Tape& tape, const Activation& x) {
                  return linear_.ForwardOntoActivated(tape, {}, {.pre = x, .value = x.value});
                });
  ExpectRefused({2, 5}, "fc.weight: the input is [2, 5], and its last size must be 6",
                [&](Tape& tape, const Activation& x) {
                  return linear_.ForwardOntoActivated(
                      tape, {}, linear_.ForwardActivated(tape, x, Nonlinearity::kGelu));
                });
  ExpectRefused(
      {2, 5}, "wte.weight: the input is [2, 5], and its last size must be 6",
      [&](Tape& tape, const Activation& x) { return LmHead(tape, x, embedding_.token_table()); });
}

TEST_F(Fit, OfANormIsToldByItsName) {
  ExpectRefused({2, 5}, "ln.weight: the input is [2, 5], and its last size must be 6",
                [&](Tape& tape, const Activation& x) { return norm_.Forward(tape, x); });
}

TEST_F(Fit, OfASumIsToldByBothShapes) {
  ExpectRefused({2, 6}, "[2, 6] and [3, 6] cannot be added", [&](Tape& tape, const Activation& x) {
    return Add(tape, x, {pool_.Allocate(DType::kF32, {3, 6})});
  });
  ExpectRefused({2, 6}, "fc.weight: [3, 6] and [2, 6] cannot be added",
                [&](Tape& tape, const Activation& x) {
                  return linear_.ForwardOnto(tape, {pool_.Allocate(DType::kF32, {3, 6})}, x);
                });
}

TEST_F(Fit, OfHeadsIsToldByTheirNumber) {
  ExpectRefused({2, 3, 12},
                "attention of 3 heads with 3 of keys: the input is [2, 3, 12], and must be "
                "[batch, sequence, 9 * head size]",
                [&](Tape& tape, const Activation& x) {
                  return CausalAttention({.heads = 3}).Forward(tape, x);
                });
}

TEST_F(Fit, OfASequenceIsToldByTheContext) {
  const std::vector<int32_t> tokens(10, 1);
  ExpectRefused({1, 6}, "wpe.weight: a sequence of 5 tokens is longer than the context of 4",
                [&](Tape& tape, const Activation&) {
                  return embedding_.Forward(tape, {.tokens = tokens, .batch = 2, .sequence = 5});
                });
}

TEST_F(Fit, OfTargetsIsToldByTheirNumber) {
  Tape tape(pool_);
  const std::vector<int32_t> targets(3, 1);
  CrossEntropy(tape, tape.Watch(pool_.Allocate(DType::kF32, {2, 9})), targets);
  EXPECT_THAT(tape.status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("there are 3 targets for 2 rows of logits, [2, 9]")));
}

}  // namespace
}  // namespace muster
