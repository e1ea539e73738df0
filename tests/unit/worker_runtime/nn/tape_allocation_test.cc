// An executable of its own, because it counts every operator new of the process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "muster/gpt.h"
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
  const auto gpt = *Gpt::Create(
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

}  // namespace
}  // namespace muster
