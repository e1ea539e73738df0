#include "worker_runtime/engine/passes_in_flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::engine {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

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
  first.came = {pool.Allocate(DType::kF32, {2}), pool.Allocate(DType::kF32, {3})};
  Tape* const tape = &passes.Begin(first);
  EXPECT_THAT(first.came, IsEmpty());
  ASSERT_THAT(first.received, SizeIs(2));
  EXPECT_EQ(first.received[1].value.shape(), (Shape{3}));
  EXPECT_TRUE(first.received[0].needs_gradient() && first.received[1].needs_gradient());
  EXPECT_EQ(tape->recompute().kind, Recompute::Kind::kFull);
  PassInFlight& second = passes.At(1, 0);
  EXPECT_NE(&passes.Begin(second), tape) << "both are under way";
  EXPECT_THAT(second.received, IsEmpty());
  first.input_gradients = {pool.Allocate(DType::kF32, {2})};
  passes.End(first);
  EXPECT_THAT(first.received, IsEmpty());
  EXPECT_THAT(first.input_gradients, SizeIs(1)) << "is still to be sent";
  EXPECT_EQ(&passes.Begin(passes.At(0, 1)), tape);
}

TEST(PassesInFlight, AreForgottenWithAStepThatFailed) {
  TensorPool pool;
  PassesInFlight passes(pool, {});
  passes.At(0, 0).gradients = {pool.Allocate(DType::kF32, {2})};
  passes.Clear();
  EXPECT_THAT(passes.At(0, 0).gradients, IsEmpty());
  EXPECT_EQ(passes.At(0, 0).tape, nullptr);
}

}  // namespace
}  // namespace muster::engine
