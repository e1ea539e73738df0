#include "worker_runtime/train/step_trace.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"

namespace muster::train {
namespace {

using ::testing::HasSubstr;

StepTrace TwoActions() {
  StepTrace trace(3, 1);
  const absl::Time start = absl::FromUnixMillis(1700000000000);
  trace.Add({.lane = TimedAction::Lane::kWaiting,
             .what = "reduce bucket 0",
             .step = 8,
             .began = start + absl::Milliseconds(5),
             .took = absl::Milliseconds(2)});
  trace.Add({.lane = TimedAction::Lane::kCompute,
             .what = "forward stage 0 micro-batch 1",
             .step = 8,
             .began = start,
             .took = absl::Milliseconds(4)});
  return trace;
}

TEST(StepTrace, IsATimeLineThatBeginsWithTheFirstAction) {
  const auto json = nlohmann::json::parse(TwoActions().ToJson());
  EXPECT_EQ(json["otherData"]["rank"], 3);
  EXPECT_EQ(json["otherData"]["began_unix_micros"], 1700000000000000);
  std::vector<nlohmann::json> slices;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") slices.push_back(event);
  }
  ASSERT_EQ(slices.size(), 2);
  EXPECT_EQ(slices[0]["ts"], 5000);
  EXPECT_EQ(slices[0]["dur"], 2000);
  EXPECT_EQ(slices[0]["tid"], 3);
  EXPECT_EQ(slices[1]["ts"], 0);
  EXPECT_EQ(slices[1]["name"], "forward stage 0 micro-batch 1");
  EXPECT_EQ(slices[1]["args"]["step"], 8);
}

TEST(StepTrace, IsWrittenUnderTheNamesOfItsRankAndAttempt) {
  const muster::testing::TemporaryDirectory directory;
  EXPECT_TRUE(TwoActions().Write(directory.path()).ok());
  EXPECT_THAT(muster::testing::ReadFile(directory.File("steps_3_1.trace.json")),
              HasSubstr("\"compute\""));
  EXPECT_THAT(TwoActions().Write(directory.path() + "/none").message(),
              HasSubstr("cannot write " + directory.path() + "/none/steps_3_1.trace.json"));
}

}  // namespace
}  // namespace muster::train
