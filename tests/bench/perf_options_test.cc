#include "tests/bench/perf_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::perf {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParsePerfOptions, TakesTheLineThatPeopleGiveNcclTests) {
  const auto options = ParsePerfOptions({"-b", "8", "-e", "128M", "-f", "2", "-g", "4"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->bytes_min, 8);
  EXPECT_EQ(options->bytes_max, 128 << 20);
  EXPECT_EQ(options->ranks_per_process, 4);
  EXPECT_EQ(options->iterations, 20);
  EXPECT_EQ(options->warm_up, 1);
  EXPECT_THAT(options->Sizes(), SizeIs(25));
}

TEST(ParsePerfOptions, KnowsTheLongNames) {
  const auto options = ParsePerfOptions({"--minbytes=1K", "--maxbytes", "4K", "--stepbytes=1024",
                                         "--datatype=double", "--op=max", "--check=0"});
  ASSERT_THAT(options, IsOk());
  EXPECT_THAT(options->Sizes(), ElementsAre(1024, 2048, 3072, 4096));
  EXPECT_EQ(options->dtype, DType::kF64);
  EXPECT_EQ(options->op, ReduceOp::kMax);
  EXPECT_FALSE(options->checks);
}

TEST(ParsePerfOptions, RoundsSizesToWholeElements) {
  const auto options = ParsePerfOptions({"-b", "3", "-e", "13"});
  ASSERT_THAT(options, IsOk());
  EXPECT_THAT(options->Sizes(), ElementsAre(4, 4, 12));
}

TEST(ParsePerfOptions, SaysWhatWasExpected) {
  EXPECT_THAT(ParsePerfOptions({"-b", "8X"}),
              StatusIs(kInvalid, HasSubstr("expected a size above 0, as 8, 64K, 128M or 1G")));
  EXPECT_THAT(ParsePerfOptions({"-d", "flaot"}), StatusIs(kInvalid, HasSubstr("float")));
  EXPECT_THAT(ParsePerfOptions({"-b", "8", "-e", "4"}), StatusIs(kInvalid, HasSubstr("less than")));
  EXPECT_THAT(ParsePerfOptions({"-G", "1"}), StatusIs(kInvalid, HasSubstr("without a GPU")));
  EXPECT_THAT(ParsePerfOptions({"-f", "1"}), StatusIs(kInvalid, HasSubstr("above 1")));
}

TEST(DecideStart, StartsTheRanksOfABareLineItself) {
  const PerfOptions four = *ParsePerfOptions({"-g", "2", "-t", "2"});
  EXPECT_EQ(DecideStart(four, 0, 0)->ranks, 4);
  EXPECT_EQ(DecideStart(four, 8, 4)->ranks, 0) << "that are there";
  EXPECT_EQ(DecideStart(*ParsePerfOptions({}), 0, 0)->ranks, 0);
  EXPECT_THAT(DecideStart(four, 2, 2),
              StatusIs(kInvalid, HasSubstr("start the job with --nproc_per_node=4")));
}

}  // namespace
}  // namespace muster::perf
