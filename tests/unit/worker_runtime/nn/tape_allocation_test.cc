// An executable of its own, because it counts every operator new of the process.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "muster/decoder.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace muster {
namespace {

TEST(Step, AllocatesNothingAfterTheFirst) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(
      {.layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 17}, store);
  store.BindToOwnBuffers();
  store.Initialize(1);
  TensorPool pool;
  Tape tape(pool);
  const auto tokens = muster::testing::RandomTokens(33, 17);
  const auto step = [&] {
    const absl::Span<const int32_t> all(tokens);
    store.ForgetGradients();
    tape.Backward(gpt->ComputeLoss(tape, {all.first(32), 2, 16}, all.subspan(1, 32)).output);
  };
  step();
  const int64_t system_before = pool.usage().system_allocations;
  const int64_t before = allocations;
  step();
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(pool.usage().system_allocations, system_before);
}

// What an operation of a program's own may keep, as a table, and what ours do.
TEST(Step, AllocatesNothingAfterTheFirstForFunctionsOfAnySize) {
  TensorPool pool;
  Tape tape(pool);
  const auto record = [&]<size_t kSize>(const std::array<int, kSize>& kept, const Activation& x) {
    return tape.Record(
        x.value, {},
        [kept, slot = x.slot](Tape& on, const Tensor& dy) {
          if (kept.back() == 0) on.AddGradient(slot, dy);
        },
        NoGradientFunction());
  };
  const auto step = [&] {
    const Activation x = tape.Watch(pool.Allocate(DType::kF32, {1}));
    const Activation small = record(std::array<int, 3>{}, x);
    const Activation large = record(std::array<int, 20'000>{}, small);
    tape.Backward(record(std::array<int, 10'000>{}, record(std::array<int, 3>{}, large)));
  };
  step();
  const int64_t before = allocations;
  step();
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace muster
