#include "launcher/bench/scaling_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ScalingFlags Parsed(const std::vector<std::string>& args) {
  return std::get<ScalingFlags>(ParseScalingFlags(args, {}).value());
}
std::string WhyNot(const std::vector<std::string>& args) {
  return std::string(ParseScalingFlags(args, {}).status().message());
}

TEST(ParseScalingFlags, LeavesTheProgramAndOptionsOfRunBehindIt) {
  const ScalingFlags flags = Parsed({"scaling", "--ranks=1,2,8", "--seconds=5", "--global_batch",
                                     "--", "--max_restarts=0", "train.py", "--ranks=3"});
  EXPECT_THAT(flags.ranks, ElementsAre(1, 2, 8));
  EXPECT_EQ(flags.seconds, absl::Seconds(5));
  EXPECT_TRUE(flags.global_batch);
  EXPECT_THAT(flags.run_line, ElementsAre("--max_restarts=0", "train.py", "--ranks=3"));
}

TEST(ParseScalingFlags, RefusesWhatItCannotMeasure) {
  EXPECT_THAT(WhyNot({}), HasSubstr("there is one: muster bench scaling"));
  EXPECT_THAT(WhyNot({"scale"}), HasSubstr("'scale' is unknown"));
  EXPECT_THAT(WhyNot({"scaling"}), HasSubstr("no program was given"));
  for (const char* ranks : {"2,1", "0,1", "1,,2", "1,x", "4096"}) {
    EXPECT_THAT(WhyNot({"scaling", std::string("--ranks=") + ranks, "train.py"}),
                HasSubstr("expected ascending numbers"))
        << ranks;
  }
  EXPECT_THAT(WhyNot({"scaling", "--seconds=0", "train.py"}), HasSubstr("must be above 0"));
  EXPECT_THAT(WhyNot({"scaling", "--", "--nproc_per_node=4", "train.py"}),
              HasSubstr("is chosen by --ranks"));
  EXPECT_THAT(Parsed({"scaling", "train.py", "--nnodes=2"}).run_line,
              ElementsAre("train.py", "--nnodes=2"))
      << "it is the program's own";
}

TEST(UsualRanks, AreThePowersOfTwoAndAllThatThereAre) {
  EXPECT_THAT(UsualRanks(1), ElementsAre(1));
  EXPECT_THAT(UsualRanks(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(UsualRanks(8), ElementsAre(1, 2, 4, 8));
}

}  // namespace
}  // namespace muster::launcher
