// The JSON of `muster status --json`: a promise to programs that read it.
#include "rendezvous/status/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace muster::status {
namespace {

using ::testing::HasSubstr;

StatusPage FullPage() {
  return {.job = "j7",
          .told_by = "the rendezvous",
          .health = {kHung, "rank 1 hangs", 12.5},
          .round = {3, "running", 2, 4, 60},
          .nodes = {2, 3, 2, 1, 1, 1, 1, 1},
          .restarts = {1, 3, 2},
          .progress = {70, 3.5, 1, "node1", 4, 64},
          .last_incident = {"rank 1 hangs", 12.5},
          .members = {{"node1", 0, 0, 2, "running", 5.5, 66, 1, 12.5, "GPU 3 is gone"}},
          .members_left_out = 1};
}

// A key that is renamed or taken away breaks who reads it: then kStatusSchema grows.
TEST(StatusPageJson, HasTheseKeysInSchemaOne) {
  ASSERT_EQ(kStatusSchema, 1);
  EXPECT_EQ(nlohmann::json::parse(ToJson(FullPage())), nlohmann::json::parse(R"({
    "schema": 1, "job": "j7", "told_by": "the rendezvous",
    "health": {"state": "hung", "text": "rank 1 hangs", "for_seconds": 12.5},
    "round": {"round": 3, "phase": "running", "num_nodes": 2, "world_size": 4, "for_seconds": 60.0},
    "nodes": {"min": 2, "max": 3, "running": 2, "joined": 1, "held_back": 1, "draining": 1,
              "lost": 1, "unfit": 1},
    "restarts": {"used": 1, "max": 3, "for_other_nodes": 2},
    "progress": {"step": 70, "steps_per_second": 3.5, "slowest_rank": 1, "slowest_node": "node1",
                 "lag_steps": 4, "committed_step": 64},
    "last_incident": {"text": "rank 1 hangs", "ago_seconds": 12.5},
    "members": [{"name": "node1", "node_rank": 0, "first_rank": 0, "num_ranks": 2,
                 "state": "running", "lease_seconds": 5.5, "step": 66, "silent_rank": 1,
                 "silent_seconds": 12.5, "check": "GPU 3 is gone"}],
    "members_left_out": 1})"));
}

TEST(StatusPageJson, IsReadBackAsItWas) {
  const auto page = ParseStatusPage(ToJson(FullPage()));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(ToJson(*page), ToJson(FullPage()));
}

TEST(StatusPageJson, OfANewerMusterIsReadAsFarAsItIsKnown) {
  const auto page = ParseStatusPage(R"({"schema": 1, "job": "j7", "weather": "fine"})");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->job, "j7");
  EXPECT_EQ(page->progress.step, -1);
}

TEST(StatusPageJson, OfAnotherSchemaIsRefused) {
  EXPECT_THAT(std::string(ParseStatusPage(R"({"schema": 2})").status().message()),
              HasSubstr("has schema 2"));
}

TEST(StatusPageJson, ThatIsNoneIsRefused) {
  for (const char* text : {"", "[]", "{", R"({"job": 7})", R"({"members": 7})",
                           R"({"members": [7]})", R"({"round": {"round": "x"}})"}) {
    EXPECT_EQ(ParseStatusPage(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(StatusPageJson, TakesNamesThatAreNoUtf8) {
  StatusPage page = FullPage();
  page.members[0].name = "node\xff";
  EXPECT_TRUE(ParseStatusPage(ToJson(page)).ok());
}

}  // namespace
}  // namespace muster::status
