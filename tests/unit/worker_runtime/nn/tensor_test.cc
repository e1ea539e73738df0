#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "muster/tensor.h"

namespace muster {
namespace {

TEST(Shape, CountsElementsAndPrintsItself) {
  const Shape shape = {4, 256, 3};
  EXPECT_EQ(shape.num_elements(), 4 * 256 * 3);
  EXPECT_EQ(shape.ToString(), "[4, 256, 3]");
  EXPECT_NE(shape, (Shape{4, 256, 3, 1}));
  EXPECT_EQ(Shape{}.num_elements(), 1);
}

TEST(TensorPool, AlignsElements) {
  TensorPool pool;
  for (const int64_t n : {1, 17, 1000}) {
    const Tensor tensor = pool.Allocate(DType::kF32, {n});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw_data()) % TensorPool::kAlignment, 0u);
    EXPECT_EQ(tensor.num_bytes(), n * 4u);
  }
}

TEST(TensorPool, GivesMemoryOutAgainAfterTheLastHandle) {
  TensorPool pool;
  Tensor first = pool.Allocate(DType::kF32, {100});
  void* memory = first.raw_data();
  Tensor second = first;
  first = Tensor();
  EXPECT_NE(pool.Allocate(DType::kF32, {100}).raw_data(), memory);
  second = Tensor();
  EXPECT_EQ(pool.Allocate(DType::kF64, {50}).raw_data(), memory);
  EXPECT_EQ(pool.usage().system_allocations, 2);
}

TEST(TensorPool, CountsWhatIsInUse) {
  TensorPool pool;
  {
    const Tensor a = pool.Allocate(DType::kF32, {16});
    const Tensor b = pool.Allocate(DType::kF32, {32});
    EXPECT_EQ(pool.usage().bytes_in_use, 192u);
  }
  EXPECT_EQ(pool.usage().bytes_in_use, 0u);
  EXPECT_EQ(pool.usage().bytes_in_use_peak, 192u);
  EXPECT_EQ(pool.usage().bytes_reserved, 192u);
  pool.Trim();
  pool.ResetPeak();
  EXPECT_EQ(pool.usage().bytes_reserved, 0u);
  EXPECT_EQ(pool.usage().bytes_in_use_peak, 0u);
}

TEST(TensorPool, HoldsLittleMoreThanWasInUseWhateverSizesComeAndGo) {
  TensorPool pool;
  for (int64_t batch = 0; batch < 120; ++batch) {
    const int64_t length = 100 + batch * 7919 % 900;
    std::vector<Tensor> step;
    for (int64_t layer = 1; layer <= 8; ++layer) {
      step.push_back(pool.Allocate(DType::kF32, {length, 16 * layer}));
    }
  }
  const TensorPool::Usage usage = pool.usage();
  EXPECT_LE(usage.bytes_reserved, usage.bytes_in_use_peak + usage.bytes_in_use_peak / 2);
}

TEST(TensorPool, TakesNothingFromTheSystemForAStepThatRepeats) {
  TensorPool pool;
  int64_t after_first = 0;
  for (int step = 0; step < 3; ++step) {
    // A chain: each tensor lives until the next one exists, and sizes go up and down.
    Tensor before = pool.Allocate(DType::kF32, {1000});
    for (const int64_t n : {3000, 9000, 2000, 500, 9000, 1000}) {
      before = pool.Allocate(DType::kF32, {n});
    }
    if (step == 0) after_first = pool.usage().system_allocations;
  }
  EXPECT_EQ(pool.usage().system_allocations, after_first);
}

TEST(TensorPool, CountsWhatIsAskedForEvenInALargerBlock) {
  TensorPool pool;
  pool.Allocate(DType::kF32, {1040});
  const Tensor smaller = pool.Allocate(DType::kF32, {1024});
  EXPECT_EQ(pool.usage().bytes_in_use, 4096u);
  EXPECT_EQ(pool.usage().bytes_reserved, 4160u);
}

TEST(TensorPool, MayGoBeforeItsTensors) {
  auto pool = std::make_unique<TensorPool>();
  Tensor tensor = pool->Allocate(DType::kF32, {4});
  pool = nullptr;
  tensor.data<float>()[3] = 1;
  EXPECT_EQ(tensor.span<float>()[3], 1);
}

TEST(TensorPool, ServesSeveralThreads) {
  TensorPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 1000; ++i) {
        const Tensor tensor = pool.Allocate(DType::kI32, {1 + i % 3 * 20});
        *tensor.data<int32_t>() = t;
        const Tensor copy = tensor;
        EXPECT_EQ(*copy.data<int32_t>(), t);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.usage().bytes_in_use, 0u);
}

TEST(Tensor, SharesElementsWithItsCopiesAndViews) {
  TensorPool pool;
  const Tensor tensor = pool.Allocate(DType::kF32, {2, 3});
  EXPECT_TRUE(tensor.IsSoleOwner());
  const Tensor row = tensor.Slice(3, {3});
  EXPECT_FALSE(tensor.IsSoleOwner());
  row.data<float>()[0] = 7;
  EXPECT_EQ(tensor.data<float>()[3], 7);
  EXPECT_EQ(tensor.Reshaped({6}).data<float>()[3], 7);
}

TEST(Tensor, BorrowsMemoryWithoutOwningIt) {
  std::vector<double> numbers = {1, 2};
  const Tensor tensor = Tensor::Borrow(numbers.data(), DType::kF64, {2});
  EXPECT_EQ(tensor.data<double>()[1], 2);
  EXPECT_FALSE(tensor.IsSoleOwner());
}

TEST(Tensor, SurvivesAssignmentToItself) {
  TensorPool pool;
  Tensor tensor = pool.Allocate(DType::kU8, {1});
  Tensor& same = tensor;
  tensor = same;
  tensor = std::move(same);
  EXPECT_FALSE(tensor.empty());
  EXPECT_TRUE(tensor.IsSoleOwner());
}

TEST(TensorDeathTest, RefusesTheWrongType) {
  TensorPool pool;
  const Tensor tensor = pool.Allocate(DType::kF32, {1});
  EXPECT_DEATH(tensor.data<double>(), "MUSTER_CHECK");
}

// AddressSanitizer asks this: without it, it ends the process itself where there is no memory.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

TEST(TensorDeathTest, MemoryThatIsNotThereIsNamed) {
  TensorPool pool;
  EXPECT_EXIT(pool.Allocate(DType::kF32, {int64_t{1} << 58}), ::testing::ExitedWithCode(1),
              "device cpu: no memory for 1152921504606846976 bytes more .*A smaller batch");
}

}  // namespace
}  // namespace muster
