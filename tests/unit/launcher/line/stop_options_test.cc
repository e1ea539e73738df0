// The command lines of `muster stop` and `muster drain`.
#include "launcher/line/stop_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;
using enum StopCommandKind;

StopFlags Parsed(StopCommandKind kind, const std::vector<std::string>& args,
                 const EnvironmentMap& environment = {}) {
  const auto parsed = ParseStopFlags(kind, args, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? std::get<StopFlags>(*parsed) : StopFlags{};
}

std::string Refused(StopCommandKind kind, const std::vector<std::string>& args) {
  const auto parsed = ParseStopFlags(kind, args, {});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(StopOptions, FindTheJobByTheOptionsOfRun) {
  const StopFlags flags =
      Parsed(kStop, {"--rdzv-endpoint=node1:4000", "--rdzv_id", "j7", "--tls=off"});
  EXPECT_EQ(ToString(flags.endpoint.value()), "node1:4000");
  EXPECT_EQ(flags.run_id, "j7");
  EXPECT_FALSE(flags.tls);
  EXPECT_TRUE(flags.authentication);
}

TEST(StopOptions, FindTheJobByTheVariablesOfRun) {
  const StopFlags flags =
      Parsed(kStop, {}, {{"PET_RDZV_ENDPOINT", "node1"}, {"PET_RDZV_ID", "j7"}});
  EXPECT_EQ(ToString(flags.endpoint.value()), "node1:29400");
  EXPECT_EQ(flags.run_id, "j7");
}

TEST(StopOptions, TakeAMasterForTheEndpoint) {
  EXPECT_EQ(
      ToString(Parsed(kStop, {"--master_addr=node1", "--master_port=29500"}).endpoint.value()),
      "node1:29500");
}

TEST(StopOptions, SayWhatIsAskedFor) {
  const StopFlags flags =
      Parsed(kStop, {"--rdzv_endpoint=a:1", "--reason=a fan", "--now", "--timeout=5"});
  EXPECT_EQ(flags.request, (StopRequest{"", "a fan", true}));
  EXPECT_EQ(flags.patience, absl::Seconds(5));
}

TEST(StopOptions, OfDrainMayFollowTheNode) {
  EXPECT_EQ(Parsed(kDrain, {"--rdzv_endpoint=a:1", "node2"}).request,
            (StopRequest{"node2", "", false}));
  EXPECT_EQ(Parsed(kDrain, {"node2", "--now", "--rdzv_endpoint=a:1"}).request,
            (StopRequest{"node2", "", true}));
}

// `muster status` finds a job so.
TEST(StopOptions, TakeTheJobAsAWord) {
  const StopFlags flags = Parsed(kStop, {"j7", "--reason=x"}, {{"MUSTER_ENDPOINT", "node1:4000"}});
  EXPECT_EQ(flags.run_id, "j7");
  EXPECT_EQ(ToString(flags.endpoint.value()), "node1:4000");
  EXPECT_EQ(flags.patience, absl::Seconds(10));
  EXPECT_EQ(Parsed(kStop, {"--rdzv_endpoint=a:1", "--rdzv_id=j8"}).run_id, "j8");
  EXPECT_THAT(Refused(kStop, {"--rdzv_endpoint=a:1", "j7", "j8"}),
              HasSubstr("'j8' is one argument too many"));
}

TEST(StopOptions, MayLeaveThePlaceOut) { EXPECT_FALSE(Parsed(kStop, {"j7"}).endpoint); }

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
    const auto parsed = ParseStopFlags(kind, {"--help"}, {});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(std::get<PrintAndExit>(*parsed).text,
                testing::AllOf(HasSubstr(usage), HasSubstr("--rdzv_id"), HasSubstr("--reason")));
  }
}

}  // namespace
}  // namespace muster::launcher
