#include "launcher/sight/sight_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;

SightFlags Parse(const std::vector<std::string>& args, const EnvironmentMap& environment = {},
                 SightKind kind = SightKind::kStatus) {
  const auto parsed = ParseSightFlags(kind, args, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return {};
  const auto* flags = std::get_if<SightFlags>(&*parsed);
  EXPECT_NE(flags, nullptr);
  return flags == nullptr ? SightFlags{} : *flags;
}

std::string WhyNot(const std::vector<std::string>& args, SightKind kind = SightKind::kStatus) {
  return std::string(ParseSightFlags(kind, args, {}).status().message());
}

TEST(ParseSightFlags, NeedsNothingOnANodeOfTheJob) {
  const SightFlags flags = Parse({});
  EXPECT_EQ(flags.way.job, "");
  EXPECT_FALSE(flags.way.endpoint.has_value());
}

TEST(ParseSightFlags, TakesTheJobInFrontOfOptionsAndBehindThem) {
  EXPECT_EQ(Parse({"j7", "--json"}).way.job, "j7");
  EXPECT_TRUE(Parse({"j7", "--json"}).json);
  EXPECT_EQ(Parse({"--json", "j7"}).way.job, "j7");
  EXPECT_EQ(Parse({"--rdzv_id=j7"}).way.job, "j7");
}

TEST(ParseSightFlags, TakesTheEndpointFromEitherVariable) {
  EXPECT_EQ(ToString(*Parse({}, {{"MUSTER_ENDPOINT", "node1"}}).way.endpoint), "node1:29400");
  EXPECT_EQ(ToString(*Parse({}, {{"PET_RDZV_ENDPOINT", "node2:7"}}).way.endpoint), "node2:7");
  EXPECT_EQ(
      ToString(*Parse({"--rdzv_endpoint=node3"}, {{"MUSTER_ENDPOINT", "node1"}}).way.endpoint),
      "node3:29400");
}

TEST(ParseSightFlags, RefusesASecondJob) {
  EXPECT_THAT(WhyNot({"j7", "j8"}), HasSubstr("'j8' is one argument too many"));
}

TEST(ParseSightFlags, TakesARankWhereRanksAreShown) {
  EXPECT_EQ(Parse({"--rank=3"}, {}, SightKind::kStacks).rank, 3);
  EXPECT_FALSE(Parse({}, {}, SightKind::kStacks).rank.has_value());
  EXPECT_THAT(WhyNot({"--rank=-1"}, SightKind::kStacks), HasSubstr("expected a rank"));
  EXPECT_THAT(WhyNot({"--rank=1"}), HasSubstr("unknown option --rank"));
}

}  // namespace
}  // namespace muster::launcher
