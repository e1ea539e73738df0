#include "proto/base/endpoint.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

template <typename Value>
std::string Message(const absl::StatusOr<Value>& value) {
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

TEST(ParseEndpoint, ReadsHostsWithAndWithoutPort) {
  EXPECT_EQ(*ParseEndpoint("node1", 29400), (Endpoint{"node1", 29400}));
  EXPECT_EQ(*ParseEndpoint("node1:1", 29400), (Endpoint{"node1", 1}));
  EXPECT_EQ(*ParseEndpoint("localhost:0", 29400), (Endpoint{"localhost", 0}));
  EXPECT_EQ(*ParseEndpoint("[::1]:5", 29400), (Endpoint{"::1", 5}));
  EXPECT_EQ(*ParseEndpoint("[fe80::1%eth0]", 29400), (Endpoint{"fe80::1%eth0", 29400}));
  EXPECT_EQ(*ParseEndpoint("::1", 29400), (Endpoint{"::1", 29400}));
}

TEST(ParseEndpoint, RefusesBadPortsAndHosts) {
  for (const char* text : {"", ":", "a:", ":1", "a:b", "a:65536", "a:-1", "http://a:1", "[::1",
                           "[::1]1", "[x]:1", "a b", "a:1:2", "a,b:1"}) {
    EXPECT_FALSE(ParseEndpoint(text, 29400).ok()) << text;
  }
}

TEST(ParseEndpoint, ShowsWhereBracketsBelong) {
  EXPECT_THAT(Message(ParseEndpoint("::1:29400", 1)), HasSubstr("[::1]:29400"));
}

TEST(ParseEndpoint, GivesBackTheDefaultAsItIs) {
  EXPECT_EQ(ParseEndpoint("node1", -1)->port, -1);
  EXPECT_EQ(ParseEndpoint("[::1]", -1)->port, -1);
}

TEST(ParseHost, TakesTheBracketsOffAnAddress) {
  EXPECT_EQ(*ParseHost("[::1]"), "::1");
  EXPECT_EQ(*ParseHost("node_1.example"), "node_1.example");
  EXPECT_THAT(Message(ParseHost("a b")), HasSubstr("'a b' is neither a host name nor an IP"));
}

TEST(Endpoint, IsWrittenSoThatItCanBeReadAgain) {
  for (const Endpoint& endpoint : {Endpoint{"node1", 1}, Endpoint{"::1", 65535}}) {
    EXPECT_EQ(*ParseEndpoint(ToString(endpoint), 0), endpoint);
  }
}

}  // namespace
}  // namespace muster
