// Sources: nn/kernel_table.h, nn/operation_arguments.h, nn/narrow_operations.cc.
#include "worker_runtime/nn/kernel_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "muster/sixteen_bits.h"
#include "worker_runtime/nn/narrow_operations.h"
#include "worker_runtime/nn/operation_arguments.h"

namespace muster {
namespace {

using enum Role;

static_assert(NumTensors<Tensor>() == 1 && NumTensors<Product>() == 0);
static_assert(NumTensors<Operations::NormGradients>() == 4 && NumTensors<Operations::Norm>() == 3);
static_assert(NumTensors<Operations::Updates>() == 1);

// A form whose kernels fill nothing and count the tensors of their row.
struct Nothing {
  template <auto kMember, Role... kRoles>
  struct Kernel;
  template <typename Result, typename... Args, Result (*Operations::*kMember)(Queue&, Args...),
            Role... kRoles>
  struct Kernel<kMember, kRoles...> {
    static_assert(sizeof...(kRoles) == 0 ||
                  sizeof...(kRoles) == (NumTensors<std::decay_t<Args>>() + ...));
    static Result Run(Queue&, Args...) { return Result(); }
  };
};

TEST(KernelTable, AFormHasAKernelForEachOperationButThoseThatFewDevicesHave) {
  constexpr Operations kTable = TableOfForm<Nothing>();
  const auto pointers =
      std::bit_cast<std::array<void*, sizeof(Operations) / sizeof(void*)>>(kTable);
  EXPECT_EQ(std::count(pointers.begin(), pointers.end(), nullptr), 1);
  EXPECT_EQ(kTable.head_loss, nullptr);
  EXPECT_EQ(kTable.linear_gelu, &LinearInPasses::LinearGelu);
}

TEST(OperationArguments, AreMadeOfTheirMappedParts) {
  float numbers[2] = {};
  const Tensor first = Tensor::Borrow(&numbers[0], DType::kF32, {1});
  const Tensor other = Tensor::Borrow(&numbers[1], DType::kF32, {1});
  std::vector<const void*> seen;
  const auto map = [&]<typename Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Tensor>) {
      seen.push_back(part.raw_data());
      return other;
    } else {
      return part;
    }
  };
  const auto mapped = MapParts(
      Operations::NormGradients{
          .addend = {}, .dx = first, .dgamma = other, .dbeta = first, .accumulate = true},
      map);
  EXPECT_EQ(seen, (std::vector<const void*>{nullptr, &numbers[0], &numbers[1], &numbers[0]}));
  const auto made = FromParts<Operations::NormGradients>(mapped);
  EXPECT_EQ(made.dx.raw_data(), &numbers[1]);
  EXPECT_TRUE(made.accumulate);
  EXPECT_EQ(FromParts<int>(MapParts(7, map)), 7);
}

uint16_t half[3] = {};
Tensor Half(int i, float value) {
  half[i] = ToBf16(value);
  return Tensor::Borrow(&half[i], DType::kBf16, {1});
}

TEST(WideCopies, AreReadFirstOrRoundedAtTheEndAsTheRolesSay) {
  constexpr Role kRoles[] = {kIn, kOut, kInOut, kScratch, kAsIs, kIn};
  TensorPool pool;
  Queue queue(Device::Cpu(), &pool);
  float wide = 0;
  {
    WideCopies copies(Device::Cpu().operations(DType::kF32), queue, kRoles);
    const Tensor in = copies(Half(0, 2)), out = copies(Half(1, 3)), sum = copies(Half(2, 4));
    EXPECT_EQ(*in.data<float>(), 2);
    EXPECT_EQ(*sum.data<float>(), 4);
    EXPECT_EQ(copies(7), 7);
    *in.data<float>() = 5;
    *out.data<float>() = 6;
    *sum.data<float>() += 3;
    EXPECT_EQ(copies(Half(0, 2)).dtype(), DType::kF32);
    EXPECT_EQ(copies(Half(0, 2)).raw_data(), &half[0]);
    EXPECT_EQ(copies(Tensor::Borrow(&wide, DType::kF32, {1})).raw_data(), &wide);
  }
  EXPECT_EQ(FromBf16(half[0]), 2);
  EXPECT_EQ(FromBf16(half[1]), 6);
  EXPECT_EQ(FromBf16(half[2]), 7);
}

TEST(WideCopies, TakeTheirMemoryOnMeta) {
  constexpr Role kRoles[] = {kIn, kOut};
  TensorPool pool(Device::Meta());
  Queue queue(Device::Meta(), &pool);
  const Tensor x = pool.Allocate(DType::kBf16, {64});
  const auto before = pool.usage().bytes_in_use;
  {
    WideCopies copies(Device::Meta().operations(DType::kF32), queue, kRoles);
    const Tensor in = copies(x), out = copies(x);
    EXPECT_EQ(pool.usage().bytes_in_use, before + 2 * 64 * sizeof(float));
  }
  EXPECT_EQ(queue.num_kernels(), 0);
  Queue without_memory(Device::Meta());
  WideCopies copies(Device::Meta().operations(DType::kF32), without_memory, kRoles);
  EXPECT_EQ(copies(x).dtype(), DType::kBf16);
}

TEST(WideCopies, AreTheHostsOnAQueueWithoutMemory) {
  constexpr Role kRoles[] = {kIn};
  Queue queue(Device::Cpu());
  WideCopies copies(Device::Cpu().operations(DType::kF32), queue, kRoles);
  EXPECT_EQ(*copies(Half(0, 2)).data<float>(), 2);
}

}  // namespace
}  // namespace muster
