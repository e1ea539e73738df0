// Memory that may be touched, and everything beside it that ends who touches it.
#include "tests/support/emulation/guarded_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace muster::testing {
namespace {

using Guards = GuardedMemory::Guards;
using ::testing::HasSubstr;

// A device's allocations: whole pages of any size that is in use.
constexpr size_t kBytes = 128 * 1024;
constexpr size_t kRegionBytes = 3 * kBytes;  // of which guards take a part

class GuardedMemoryTest : public ::testing::TestWithParam<Guards> {
 protected:
  void SetUp() override {
    if (GetParam() == Guards::kMarks && GuardedMemory::GuardsOfThisKernel() != Guards::kMarks) {
      GTEST_SKIP() << "this kernel marks no guards, as Linux does from 6.13 on";
    }
    for (auto& each : memory) each = static_cast<volatile char*>(guarded.Allocate(kBytes));
  }

  GuardedMemory guarded{GetParam(), kRegionBytes};
  volatile char* memory[3] = {};
};

TEST_P(GuardedMemoryTest, IsOpenWhileItIsOpened) {
  guarded.Open();
  for (volatile char* each : memory) {
    EXPECT_EQ(static_cast<unsigned char>(each[0]), kMemoryPoison);
    EXPECT_EQ(static_cast<unsigned char>(each[kBytes - 1]), kMemoryPoison);
    each[0] = 1;
  }
  guarded.Close();
  EXPECT_EQ(guarded.Free(const_cast<char*>(memory[1])), "");
  guarded.Open();
  EXPECT_EQ(memory[0][0] + memory[2][0], 2);
  guarded.Close();
  EXPECT_THAT(guarded.Free(const_cast<char*>(memory[1])), HasSubstr("freed before"));
}

TEST_P(GuardedMemoryTest, HoldsWhatIsLargerThanARegion) {
  auto* const large = static_cast<volatile char*>(guarded.Allocate(5 * kRegionBytes));
  auto* const behind = static_cast<volatile char*>(guarded.Allocate(1));
  guarded.Open();
  for (volatile char* each : {large, large + 5 * kRegionBytes - 1, behind}) each[0] = 1;
  EXPECT_DEATH(static_cast<void>(large[-1]), "");
  EXPECT_DEATH(static_cast<void>(large[5 * kRegionBytes]), "");
  guarded.Close();
  EXPECT_DEATH(static_cast<void>(large[kRegionBytes]), "");
}

TEST_P(GuardedMemoryTest, WhatIsAllocatedMeanwhileIsOutOfReachUntilItIsOpened) {
  auto* const late = static_cast<volatile char*>(guarded.Allocate(1));
  EXPECT_DEATH(static_cast<void>(late[0]), "");
  guarded.Open();
  late[0] = 3;
  guarded.Close();
  EXPECT_DEATH(static_cast<void>(late[0]), "");
}

TEST_P(GuardedMemoryTest, EndsWhoTouchesItClosed) {
  guarded.Open();
  guarded.Close();
  for (volatile char* each : memory) {
    EXPECT_DEATH(static_cast<void>(each[0]), "");
    EXPECT_DEATH(each[kBytes - 1] = 0, "");
  }
}

TEST_P(GuardedMemoryTest, EndsWhoTouchesWhatLiesBesideIt) {
  guarded.Open();
  for (volatile char* each : memory) {
    EXPECT_DEATH(static_cast<void>(each[-1]), "");
    EXPECT_DEATH(static_cast<void>(each[kBytes]), "");
  }
  guarded.Close();
}

TEST_P(GuardedMemoryTest, EndsWhoTouchesWhatIsFreed) {
  EXPECT_EQ(guarded.Free(const_cast<char*>(memory[1])), "");
  guarded.Open();
  EXPECT_DEATH(static_cast<void>(memory[1][0]), "");
  EXPECT_DEATH(memory[1][kBytes - 1] = 0, "");
  guarded.Close();
}

INSTANTIATE_TEST_SUITE_P(Guarded, GuardedMemoryTest,
                         ::testing::Values(Guards::kMarks, Guards::kProtection),
                         [](const auto& info) -> std::string {
                           return info.param == Guards::kMarks ? "by_marks" : "by_protection";
                         });

}  // namespace
}  // namespace muster::testing
