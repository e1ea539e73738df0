#include "proto/command_line/listen_address.h"

#include <gtest/gtest.h>

namespace muster::command_line {
namespace {

TEST(ListenAddress, IsOfThisMachineAloneUnlessAnAddressIsGiven) {
  EXPECT_EQ(*ParseListenAddress("9400"), (Endpoint{.host = "127.0.0.1", .port = 9400}));
  EXPECT_EQ(*ParseListenAddress("0"), (Endpoint{.host = "127.0.0.1", .port = 0}));
  EXPECT_EQ(*ParseListenAddress("0.0.0.0:9400"), (Endpoint{.host = "0.0.0.0", .port = 9400}));
  EXPECT_EQ(*ParseListenAddress("[::]:9400"), (Endpoint{.host = "::", .port = 9400}));
}

TEST(ListenAddress, NeedsAPort) {
  for (const char* text : {"", "http", "node1", "70000", "-1", ":9400", "127.0.0.1:", "[::]"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
}

}  // namespace
}  // namespace muster::command_line
