#include "proto/base/numeric_address.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(IsLoopbackAddress, IsTrueOfNumbersThatEveryMachineHas) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
  }
  for (const char* address : {"", "localhost", "0.0.0.0", "::", "10.0.0.1", "fd00::1", "127.0.0"}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  }
}

TEST(CommonPrefixLength, CountsBitsOfOneFamily) {
  EXPECT_EQ(CommonPrefixLength("10.0.0.1", "10.0.0.2"), 30);
  EXPECT_EQ(CommonPrefixLength("10.0.0.1", "10.0.0.1"), 32);
  EXPECT_EQ(CommonPrefixLength("10.0.0.1", "192.168.0.1"), 0);
  EXPECT_EQ(CommonPrefixLength("fd00::1", "fd00::2%eth0"), 126);
  EXPECT_EQ(CommonPrefixLength("::1", "127.0.0.1"), 0);
  EXPECT_EQ(CommonPrefixLength("node1", "node1"), 0);
}

}  // namespace
}  // namespace muster
