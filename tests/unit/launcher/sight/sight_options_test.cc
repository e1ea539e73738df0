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

// --- `muster stop` and `muster drain`

using enum SightKind;

SightFlags Parsed(SightKind kind, const std::vector<std::string>& args,
                  const EnvironmentMap& environment = {}) {
  const auto parsed = ParseSightFlags(kind, args, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? std::get<SightFlags>(*parsed) : SightFlags{};
}

std::string Refused(SightKind kind, const std::vector<std::string>& args) {
  const auto parsed = ParseSightFlags(kind, args, {});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(StopOptions, FindTheJobByTheOptionsOfRun) {
  const SightFlags flags =
      Parsed(kStop, {"--rdzv-endpoint=node1:4000", "--rdzv_id", "j7", "--tls=off"});
  EXPECT_EQ(ToString(flags.way.endpoint.value()), "node1:4000");
  EXPECT_EQ(flags.way.job, "j7");
  EXPECT_FALSE(flags.way.tls);
  EXPECT_TRUE(flags.way.authentication);
}

TEST(StopOptions, FindTheJobByTheVariablesOfRun) {
  const SightFlags flags =
      Parsed(kStop, {}, {{"PET_RDZV_ENDPOINT", "node1"}, {"PET_RDZV_ID", "j7"}});
  EXPECT_EQ(ToString(flags.way.endpoint.value()), "node1:29400");
  EXPECT_EQ(flags.way.job, "j7");
}

TEST(StopOptions, TakeAMasterForTheEndpoint) {
  EXPECT_EQ(
      ToString(Parsed(kStop, {"--master_addr=node1", "--master_port=29500"}).way.endpoint.value()),
      "node1:29500");
}

TEST(StopOptions, SayWhatIsAskedFor) {
  const SightFlags flags =
      Parsed(kStop, {"--rdzv_endpoint=a:1", "--reason=a fan", "--now", "--timeout=5"});
  EXPECT_EQ(flags.request, (StopRequest{"", "a fan", true}));
  EXPECT_EQ(flags.way.patience, absl::Seconds(5));
}

TEST(StopOptions, OfDrainMayFollowTheNode) {
  EXPECT_EQ(Parsed(kDrain, {"--rdzv_endpoint=a:1", "node2"}).request,
            (StopRequest{"node2", "", false}));
  EXPECT_EQ(Parsed(kDrain, {"node2", "--now", "--rdzv_endpoint=a:1"}).request,
            (StopRequest{"node2", "", true}));
}

// `muster status` finds a job so.
TEST(StopOptions, TakeTheJobAsAWord) {
  const SightFlags flags = Parsed(kStop, {"j7", "--reason=x"}, {{"MUSTER_ENDPOINT", "node1:4000"}});
  EXPECT_EQ(flags.way.job, "j7");
  EXPECT_EQ(ToString(flags.way.endpoint.value()), "node1:4000");
  EXPECT_EQ(flags.way.patience, absl::Seconds(10));
  EXPECT_EQ(Parsed(kStop, {"--rdzv_endpoint=a:1", "--rdzv_id=j8"}).way.job, "j8");
  EXPECT_THAT(Refused(kStop, {"--rdzv_endpoint=a:1", "j7", "j8"}),
              HasSubstr("'j8' is one argument too many"));
}

TEST(StopOptions, MayLeaveThePlaceOut) { EXPECT_FALSE(Parsed(kStop, {"j7"}).way.endpoint); }

TEST(StopOptions, OfDrainNeedOneNode) {
  EXPECT_THAT(Refused(kDrain, {"--rdzv_endpoint=a:1"}), HasSubstr("no node was given"));
  EXPECT_THAT(Refused(kDrain, {"--rdzv_endpoint=a:1", "node2", "node3"}),
              HasSubstr("'node3' is one argument too many"));
}

TEST(StopOptions, SayWhatWasMeant) {
  EXPECT_THAT(Refused(kStop, {"--rdzv_endpiont=a:1"}), HasSubstr("did you mean --rdzv_endpoint"));
  EXPECT_THAT(Refused(kStop, {"--rdzv_endpoint=a:b"}), HasSubstr("--rdzv_endpoint=a:b"));
}

TEST(StopOptions, HaveHelp) {
  for (const auto& [kind, usage] : {std::pair(kStop, "usage: muster stop"),
                                    std::pair(kDrain, "usage: muster drain [options] NODE")}) {
    const auto parsed = ParseSightFlags(kind, {"--help"}, {});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(std::get<PrintAndExit>(*parsed).text,
                testing::AllOf(HasSubstr(usage), HasSubstr("--rdzv_id"), HasSubstr("--reason")));
  }
}

}  // namespace
}  // namespace muster::launcher
