#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/parameter.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace muster {
namespace {

using ::muster::testing::SameBits;
using ::testing::Each;

ParameterSpec Matrix(absl::string_view name, Shape shape) {
  return {.name = std::string(name), .shape = shape, .initializer = Initializer::Normal(0.5)};
}

TEST(ParameterStore, TakesNoMemoryUntilBound) {
  ParameterStore store;
  Parameter& parameter = store.Declare(Matrix("huge", {1 << 20, 1 << 20}));
  EXPECT_EQ(parameter.num_elements(), int64_t{1} << 40);
  EXPECT_TRUE(parameter.value().empty());
}

TEST(ParameterStore, BindsParametersSideBySide) {
  ParameterStore store;
  Parameter& a = store.Declare(Matrix("a", {2, 3}));
  Parameter& b = store.Declare(Matrix("b", {4}));
  store.BindToOwnBuffers();
  EXPECT_EQ(b.value().data<float>(), a.value().data<float>() + 6);
  EXPECT_EQ(b.gradient().data<float>(), store.flat_gradients().data<float>() + 6);
  EXPECT_EQ(store.num_elements(), 10);
  EXPECT_EQ(store.Find("b"), &b);
  EXPECT_EQ(store.Find("c"), nullptr);
}

TEST(ParameterStore, InitializesByNameAndSeedWhateverElseIsDeclared) {
  ParameterStore alone;
  ParameterStore among_others;
  Parameter& a = alone.Declare(Matrix("x", {100}));
  among_others.Declare(Matrix("y", {7}));
  Parameter& b = among_others.Declare(Matrix("x", {100}));
  for (ParameterStore* store : {&alone, &among_others}) {
    store->BindToOwnBuffers();
    store->Initialize(3);
  }
  EXPECT_TRUE(SameBits(a.value().span<float>(), b.value().span<float>()));
  among_others.Initialize(4);
  EXPECT_FALSE(SameBits(a.value().span<float>(), b.value().span<float>()));
}

TEST(ParameterStore, InitializesAShardLikeTheWhole) {
  ParameterStore store;
  Parameter& parameter = store.Declare(Matrix("x", {100}));
  store.BindToOwnBuffers();
  store.Initialize(3);
  std::vector<float> shard(21);
  InitializeElements(parameter, 3, 33, Tensor::Borrow(shard.data(), DType::kF32, {21}));
  EXPECT_TRUE(SameBits(parameter.value().span<float>().subspan(33, 21), shard));
}

TEST(Parameter, TheFirstGradientOverwritesAndTheNextAdds) {
  ParameterStore store;
  Parameter& parameter = store.Declare(Matrix("x", {4}));
  store.BindToOwnBuffers();
  EXPECT_FALSE(parameter.BeginGradient().accumulate);
  EXPECT_TRUE(parameter.BeginGradient().accumulate);
  store.ForgetGradients();
  EXPECT_FALSE(parameter.BeginGradient().accumulate);
}

TEST(Parameter, SparseWritersFindZerosAndUnwrittenGradientsBecomeZero) {
  ParameterStore store;
  Parameter& sparse = store.Declare(Matrix("sparse", {4}));
  Parameter& unused = store.Declare(Matrix("unused", {4}));
  store.BindToOwnBuffers();
  Queue queue(Device::Cpu());
  for (float& g : store.flat_gradients().span<float>()) g = 5;
  EXPECT_THAT(sparse.BeginSparseGradient(queue).span<float>(), Each(0));
  sparse.gradient().data<float>()[1] = 2;
  EXPECT_EQ(sparse.BeginSparseGradient(queue).data<float>()[1], 2);
  EXPECT_EQ(unused.gradient().data<float>()[0], 5);
  store.ZeroUnwritten(queue);
  EXPECT_THAT(unused.gradient().span<float>(), Each(0));
  EXPECT_EQ(sparse.gradient().data<float>()[1], 2);
}

TEST(ParameterStore, NumbersUnitsInTheOrderTheyBegin) {
  ParameterStore store;
  EXPECT_EQ(store.BeginUnit("embedding"), 0);
  EXPECT_EQ(store.Declare(Matrix("a", {1})).unit(), 0);
  EXPECT_EQ(store.BeginUnit("h.0"), 1);
  EXPECT_EQ(store.Declare(Matrix("b", {1})).unit(), 1);
}

TEST(Scope, JoinsNamesByDots) {
  ParameterStore store;
  const Scope scope = Scope(store) / "h" / 0 / "ln_1";
  EXPECT_EQ(scope.Declare(Matrix("weight", {1})).name(), "h.0.ln_1.weight");
}

// A large array is filled by several threads; a shard of it by its owner alone.
TEST(InitializeElements, GivesEachElementTheSameValueOnEveryRank) {
  ParameterStore store;
  const Parameter& w =
      store.Declare({.name = "w", .shape = {3000, 700}, .initializer = Initializer::Normal(0.5)});
  std::vector<float> whole(w.num_elements());
  InitializeElements(w, 9, 0, Tensor::Borrow(whole.data(), DType::kF32, {2'100'000}));
  for (const int64_t first : {0, 1, 524'287, 1'049'999, 2'099'900}) {
    std::vector<float> part(100);
    InitializeElements(w, 9, first, Tensor::Borrow(part.data(), DType::kF32, {100}));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
  }
}

TEST(ParameterStoreDeathTest, RefusesANameUsedTwice) {
  ParameterStore store;
  store.Declare(Matrix("a", {1}));
  EXPECT_DEATH(store.Declare(Matrix("a", {1})), "MUSTER_CHECK");
}

}  // namespace
}  // namespace muster
