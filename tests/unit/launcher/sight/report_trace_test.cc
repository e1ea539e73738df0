#include "launcher/sight/report_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "nlohmann/json.hpp"
#include "tests/unit/launcher/sight/job_diaries.h"

namespace muster::launcher {
namespace {

using nlohmann::json;

json TraceOfTwoNodes() { return json::parse(ReportTrace(TwoNodes())); }

TEST(ReportTrace, HasTheFieldsOfEachKindOfEvent) {
  const json trace = TraceOfTwoNodes();
  ASSERT_TRUE(trace["traceEvents"].is_array());
  for (const json& event : trace["traceEvents"]) {
    const std::string kind = event["ph"];
    EXPECT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer()) << event;
    EXPECT_TRUE(event["name"].is_string()) << event;
    if (kind == "M") {
      EXPECT_TRUE(event["args"]["name"].is_string()) << event;
    } else if (kind == "X") {
      EXPECT_GE(event["ts"].get<int64_t>(), 0) << event;
      EXPECT_GE(event["dur"].get<int64_t>(), 0) << event;
    } else {
      EXPECT_EQ(kind, "i") << event;
      EXPECT_EQ(event["s"], "p") << event;
    }
  }
}

TEST(ReportTrace, HasAProcessForEachNodeWithItsTimeAndItsRounds) {
  std::set<std::string> names;
  bool has_hung = false, has_round = false, has_failure = false;
  const json trace = TraceOfTwoNodes();
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") names.insert(event["args"]["name"].get<std::string>());
    has_hung |= event["name"] == "hung" && event["ts"] == 28000000 && event["dur"] == 4000000;
    has_round |= event["name"] == "round 0" && event["ts"] == 4000000 && event["dur"] == 13000000;
    has_failure |= event["name"] == "failure" && event["ts"] == 15000000;
  }
  EXPECT_EQ(names, (std::set<std::string>{"node1, ranks 0-1", "node2, ranks 2-3"}));
  EXPECT_TRUE(has_hung);
  EXPECT_TRUE(has_round);
  EXPECT_TRUE(has_failure);
}

TEST(ReportTrace, PutsTheStepsOfRanksAtTheirPlaceInTheJob) {
  const auto steps = [](int64_t began) {
    return json{{"otherData", {{"rank", 2}, {"began_unix_micros", began}}},
                {"traceEvents",
                 {{{"ph", "M"}, {"name", "process_name"}, {"pid", 2}},
                  {{"ph", "X"}, {"name", "forward"}, {"pid", 2}, {"ts", 7}, {"dur", 3}},
                  "no event"}}}
        .dump();
  };
  const std::string of_the_job = steps(kBeganMillis * 1000 + 5000000);
  const std::string of_another_time = steps(1);
  const json trace =
      json::parse(ReportTrace(TwoNodes(), {of_the_job, of_another_time, "{}", "[", "3"}));
  int found = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] != "forward") continue;
    ++found;
    EXPECT_EQ(event["ts"], 5000007);
    EXPECT_EQ(event["pid"], 1000002) << "no node has that number";
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace muster::launcher
