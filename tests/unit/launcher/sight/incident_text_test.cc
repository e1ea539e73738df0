#include "launcher/sight/incident_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace muster::launcher {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// Removes the ends of lines that only fit it on a terminal.
std::string Flat(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

json Hang() {
  return {{"schema", 1},
          {"kind", "hang"},
          {"run_id", "train"},
          {"node", "node1"},
          {"round", 3},
          {"restart_count", 1},
          {"decided_at", "2026-11-25T13:00:00Z"},
          {"text", "rank 2 has not called all_reduce"},
          {"reason", "nothing has moved for 600s"},
          {"action", "reported only"},
          {"verdict",
           {{"finding", "not_called"},
            {"cause", "data_loader"},
            {"cause_in_words", "it waits for its data"},
            {"culprits", {2}},
            {"waiting", {0, 1}}}},
          {"ranks",
           {{{"rank", 2},
             {"pid", 12},
             {"node", "node2"},
             {"phase", "between steps"},
             {"silent_s", 12.0},
             {"doing", "asleep"}}}},
          {"stacks", {{{"ranks", {2}}, {"frames", {"clock_nanosleep", "main"}}}}},
          {"python_stacks", {{{"ranks", {0, 1}}, {"frames", {"step at train.py:26"}}}}},
          {"timeline_ms", {{"detected", 0}, {"decided", 7012}, {"first_step", 9000}}}};
}

json Abort() {
  const json call = {{"ranks", {1}},
                     {"operation",
                      {{"group", "world"},
                       {"kind", "all_reduce"},
                       {"sequence", 7},
                       {"bytes", 64},
                       {"dtype", "f32"},
                       {"peer", -1}}},
                     {"asked_before_ms", 5}};
  return {{"schema", 1},
          {"kind", "abort"},
          {"run_id", "train"},
          {"node", "node1"},
          {"round", 0},
          {"restart_count", 0},
          {"said_at", "2026-11-25T13:00:00Z"},
          {"text", "rank 0 has aborted."},
          {"aborted", {0}},
          {"differences", {call}},
          {"last_calls", {call}},
          {"not_known", {3}}};
}

TEST(ExplainIncident, SaysOfAHangWhoWhyAndWhatFollowed) {
  const auto text = ExplainIncident(Hang().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  for (const char* part :
       {"Job train hung in round 3, after 1 restart.", "What it was: rank 2 has not called",
        "nothing has moved for 600s.", "The cause: it waits for its data.", "At fault: rank 2.",
        "Waiting for it: ranks 0 and 1.", "What followed: reported only.", "decided 7.0 s",
        "first step 9.0 s", "Rank 2 on node2 (pid 12) was between steps",
        "Python of ranks 0 and 1, innermost first:   step at train.py:26",
        "Native stack of rank 2, innermost first:   clock_nanosleep   main"}) {
    EXPECT_THAT(Flat(*text), HasSubstr(part));
  }
}

TEST(ExplainIncident, SaysOfAnAbortWhatWasCalled) {
  const auto text = ExplainIncident(Abort().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  for (const char* part :
       {"A rank of job train aborted in round 0.", "What it was: rank 0 has aborted. ",
        "Aborted: rank 0.", "Where they differ, rank 1 called all_reduce of 64 bytes of f32",
        "number 7 of group world", "Not known: what rank 3 called."}) {
    EXPECT_THAT(Flat(*text), HasSubstr(part));
  }
}

TEST(ExplainIncident, LivesWithoutWhatIsMissingOrOfAnotherType) {
  for (const char* key : {"verdict", "ranks", "stacks", "python_stacks", "timeline_ms", "text"}) {
    for (const json& value : {json(), json(7), json("x"), json::array({1, "x", json::object()}),
                              json::object({{"frames", 3}})}) {
      json hang = Hang();
      hang[key] = value;
      EXPECT_TRUE(ExplainIncident(hang.dump()).ok()) << key << " " << value;
      json abort = Abort();
      abort["last_calls"] = value;
      EXPECT_TRUE(ExplainIncident(abort.dump()).ok()) << value;
    }
  }
}

TEST(ExplainIncident, LeavesNoControlCharactersToATerminal) {
  json hang = Hang();
  hang["text"] = "\x1b[2J";
  hang["stacks"][0]["frames"][0] = "\x1b]0;x";
  EXPECT_THAT(*ExplainIncident(hang.dump()), Not(HasSubstr("\x1b")));
}

TEST(ExplainIncident, RefusesWhatIsNoIncidentFile) {
  const auto why = [](const std::string& text) {
    return std::string(ExplainIncident(text).status().message());
  };
  EXPECT_THAT(why("x"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why("{}"), HasSubstr("its kind is neither hang nor abort"));
  json newer = Hang();
  newer["schema"] = 2;
  EXPECT_THAT(why(newer.dump()), HasSubstr("has schema 2, and this version of muster knows 1"));
}

TEST(SummaryOfIncident, IsWhatAReportSays) {
  const auto hang = SummaryOfIncident(Hang().dump());
  ASSERT_TRUE(hang.ok());
  EXPECT_EQ(hang->kind, "hang");
  EXPECT_EQ(hang->round, 3);
  EXPECT_EQ(hang->cause, "it waits for its data");
  EXPECT_EQ(hang->at, "2026-11-25T13:00:00Z");
}

}  // namespace
}  // namespace muster::launcher
