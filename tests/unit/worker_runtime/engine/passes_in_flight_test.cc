#include "worker_runtime/engine/passes_in_flight.h"

#include <gtest/gtest.h>

namespace muster::engine {
namespace {

TEST(PassesInFlight, AreToldApartByStageAndMicroBatch) {
  TensorPool pool;
  PassesInFlight passes(pool, {});
  PassInFlight& first = passes.At(0, 1);
  EXPECT_NE(&first, &passes.At(0, 2));
  EXPECT_NE(&first, &passes.At(1, 1));
  EXPECT_EQ(&first, &passes.At(0, 1));
}

TEST(PassesInFlight, WatchWhatWasReceivedAndGiveTheirTapeToTheNext) {
  TensorPool pool;
  PassesInFlight passes(pool, {.kind = Recompute::Kind::kFull});
  PassInFlight& first = passes.At(0, 0);
  first.received.value = pool.Allocate(DType::kF32, {2});
  Tape* const tape = &passes.Begin(first);
  EXPECT_TRUE(first.received.needs_gradient());
  EXPECT_EQ(tape->recompute().kind, Recompute::Kind::kFull);
  PassInFlight& second = passes.At(1, 0);
  EXPECT_NE(&passes.Begin(second), tape) << "both are under way";
  EXPECT_FALSE(second.received.needs_gradient()) << "nothing was received";
  first.input_gradient = pool.Allocate(DType::kF32, {2});
  passes.End(first);
  EXPECT_TRUE(first.received.value.empty());
  EXPECT_FALSE(first.input_gradient.empty()) << "is still to be sent";
  EXPECT_EQ(&passes.Begin(passes.At(0, 1)), tape);
}

TEST(PassesInFlight, AreForgottenWithAStepThatFailed) {
  TensorPool pool;
  PassesInFlight passes(pool, {});
  passes.At(0, 0).gradient = pool.Allocate(DType::kF32, {2});
  passes.Clear();
  EXPECT_TRUE(passes.At(0, 0).gradient.empty());
  EXPECT_EQ(passes.At(0, 0).tape, nullptr);
}

}  // namespace
}  // namespace muster::engine
