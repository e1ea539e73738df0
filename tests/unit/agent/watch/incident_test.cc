#include "agent/watch/incident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Incident RankTwoSleeps() {
  Incident incident{.run_id = "job", .node = "node1", .round = Round(3), .reason = "it is late"};
  incident.diagnosis = {
      .finding = hangs::Finding::kNotCalled,
      .culprits = {2},
      .waiting = {0, 1},
      .group = "world",
      .operation =
          hangs::Operation{
              .kind = OperationKind::kAllReduce, .sequence = 17, .bytes = 64, .dtype = "f32"},
      .confidence = 0.8,
      .cause = hangs::Cause::kDataLoader};
  const std::vector<std::string> waits = {
      "? in libc.so.6", "std::cv_status std::condition_variable::wait<int>(int)",
      "muster::comm::Completion::Wait(muster::MonoTime)", "main"};
  incident.ranks = {{.rank = 2,
                     .pid = 12,
                     .phase = "is between steps",
                     .silent_for = absl::Seconds(12),
                     .told_by = hangs::ToldBy::kMarks,
                     .doing = "asleep",
                     .frames = {"clock_nanosleep", "app::(anonymous namespace)::Load(int)"}},
                    {.rank = 0,
                     .pid = 10,
                     .phase = "is in phase reduce",
                     .silent_for = absl::Seconds(11),
                     .told_by = hangs::ToldBy::kOperations,
                     .frames = waits},
                    {.rank = 1,
                     .pid = 11,
                     .phase = "is in phase reduce",
                     .silent_for = absl::Seconds(11),
                     .told_by = hangs::ToldBy::kOperations,
                     .frames = waits}};
  incident.action = "reported";
  return incident;
}

TEST(Incident, BeginsWithTheNetworkThatFailedItsCheck) {
  Incident incident = RankTwoSleeps();
  EXPECT_FALSE(nlohmann::json::parse(ToJson(incident)).contains("network"));
  incident.network_faults = {"node1 does not reach node2", "node2 does not reach node1"};
  EXPECT_THAT(InWords(incident),
              ::testing::StartsWith("network: node1 does not reach node2\n"
                                    "network: node2 does not reach node1\nhang: "));
  EXPECT_EQ(nlohmann::json::parse(ToJson(incident))["network"][1], "node2 does not reach node1");
}

TEST(MergeStacks, MakesOneOfEqualStacks) {
  Incident incident = RankTwoSleeps();
  std::swap(incident.ranks[1], incident.ranks[2]);
  const std::vector<StackGroup> groups = MergeStacks(incident.ranks);
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_THAT(groups[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(groups[1].ranks, ElementsAre(2));
}

TEST(Incident, ReadsAsOneParagraphWithTheRankAtFaultFirst) {
  const std::string text = InWords(RankTwoSleeps());
  EXPECT_THAT(text, AllOf(HasSubstr("hang: rank 2 has not called all_reduce #17"),
                          HasSubstr("\n  cause: it waits for its data (data_loader)\n"),
                          HasSubstr("\n  rank 2 (pid 12) is between steps, asleep, silent for"),
                          HasSubstr("\n  ranks 0 and 1 in muster::comm::Completion::Wait\n"),
                          HasSubstr("\n  rank 2 in app::Load\n"), HasSubstr("\n  reported")));
  EXPECT_LT(text.find("rank 2 (pid 12)"), text.find("rank 0 (pid 10)"));
}

TEST(Incident, IsJsonForPrograms) {
  Incident incident = RankTwoSleeps();
  incident.timeline = {{std::string(kStopped), absl::Milliseconds(1500)}};
  incident.ranks[1].no_frames = "bytes that are no text: \xff";
  const nlohmann::json json = nlohmann::json::parse(ToJson(incident));
  EXPECT_EQ(json["verdict"]["culprits"].dump(), "[2]");
  EXPECT_EQ(json["verdict"]["operation"]["sequence"], 17);
  EXPECT_EQ(json["verdict"]["cause"], "data_loader");
  EXPECT_EQ(json["timeline_ms"]["stopped"], 1500);
  EXPECT_EQ(json["round"], 3);
  EXPECT_EQ(
      json["detected_by"].dump(),
      R"([{"ranks":[0,1],"silence_on":"progress_board"},{"ranks":[2],"silence_on":"marks"}])");
}

TEST(Incident, SaysByWhoseSilenceItWasDetectedAndWhatHappenedWhen) {
  Incident incident = RankTwoSleeps();
  incident.timeline = {{std::string(kDetected), absl::ZeroDuration()},
                       {std::string(kFirstStep), absl::Milliseconds(1500)}};
  EXPECT_TRUE(HasReached(incident, kFirstStep));
  EXPECT_FALSE(HasReached(incident, kStopped));
  EXPECT_THAT(
      InWords(incident),
      AllOf(HasSubstr("\n  detected by silence: ranks 0 and 1 on the progress board, rank 2 "
                      "in its marks\n"),
            HasSubstr("\n  timeline in ms: detected 0, first step 1500\n")));
}

TEST(Incident, WhoHasEndedOrDoesNotMoveForLessTimeHasNotShownIt) {
  Incident incident = RankTwoSleeps();
  incident.ranks[0].pid = 0;
  incident.ranks[1].silent_for = absl::Seconds(4);
  EXPECT_THAT(InWords(incident), HasSubstr("detected by silence: rank 1 on the progress board\n"));
}

TEST(AbortIncident, IsJsonOfWhatTheRanksCalledLast) {
  const auto call = [](int64_t bytes) {
    return hangs::Operation{
        .kind = OperationKind::kAllReduce, .sequence = 6, .bytes = bytes, .dtype = "f32"};
  };
  const AbortIncident incident{
      .run_id = "job",
      .node = "node1",
      .round = Round(3),
      .restart_count = 2,
      .report = hangs::CompareLastCalls(
          {0}, 4,
          {{.rank = 1, .age = {}, .calls = {{"0", "world", call(64)}}},
           {.rank = 2, .age = absl::Milliseconds(1300), .calls = {{"0", "world", call(128)}}}})};
  const auto json = nlohmann::json::parse(ToJson(incident), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["kind"], "abort");
  EXPECT_EQ(json["round"], 3);
  EXPECT_EQ(json["restart_count"], 2);
  EXPECT_EQ(json["aborted"].dump(), "[0]");
  EXPECT_EQ(json["not_known"].dump(), "[0,3]");
  EXPECT_EQ(json["text"], hangs::InWords(incident.report));
  ASSERT_EQ(json["differences"].size(), 2u);
  ASSERT_EQ(json["last_calls"].size(), 2u);
  EXPECT_EQ(json["last_calls"][0]["ranks"].dump(), "[1]");
  EXPECT_EQ(json["last_calls"][0]["asked_before_ms"], 0);
  EXPECT_EQ(json["last_calls"][1]["asked_before_ms"], 1300);
  EXPECT_EQ(json["last_calls"][1]["operation"]["bytes"], 128);
  EXPECT_EQ(json["last_calls"][1]["operation"]["group"], "world");
}

// Keys of all objects in it.
void AddKeys(const nlohmann::json& json, std::set<std::string>& keys) {
  for (const auto& [key, value] : json.items()) {
    if (json.is_object()) keys.insert(key);
    if (value.is_structured()) AddKeys(value, keys);
  }
}

// What the guide says of incident files, up to the diary.
std::string GuideToIncidents() {
  const std::string guide =
      testing::ReadFile(absl::StrCat(testing::kSourceDirectory, "/deploy/docs/incidents.md"));
  return guide.substr(0, guide.find("## The diary"));
}

TEST(IncidentFiles, HaveTheKeysThatTheGuideNames) {
  Incident hang = RankTwoSleeps();
  hang.ranks[0].step = 7;
  hang.ranks[0].node = "node2";
  hang.ranks[1].no_frames = "it has ended";
  hang.ranks[1].frames.clear();
  hang.ranks[2].python = {"step at train.py:26"};
  for (const absl::string_view what :
       {kDetected, kDecided, kReported, kStopped, kReformed, kStarted, kFirstStep}) {
    hang.timeline.push_back({std::string(what), absl::ZeroDuration()});
  }
  const AbortIncident abort{
      .report = hangs::CompareLastCalls(
          {0}, 2,
          {{.rank = 1,
            .age = {},
            .calls = {{"0", "world", {.kind = OperationKind::kAllReduce, .sequence = 1}}}}})};
  const auto of_hang = nlohmann::json::parse(ToJson(hang));
  const auto of_abort = nlohmann::json::parse(ToJson(abort));
  EXPECT_EQ(of_hang["schema"], kIncidentSchema);
  EXPECT_EQ(of_abort["schema"], kIncidentSchema);
  std::set<std::string> written;
  AddKeys(of_hang, written);
  AddKeys(of_abort, written);
  const std::string guide = GuideToIncidents();
  for (const std::string& key : written) {
    EXPECT_THAT(guide, HasSubstr(absl::StrCat("`", key, "`"))) << "it is written, and not told of";
  }
  // What is named as a key at the beginning of a row is written.
  for (const absl::string_view line : absl::StrSplit(guide.substr(guide.find("## Hangs")), '\n')) {
    if (!absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line.substr(2, line.find(" |", 2)), '`');
    for (size_t i = 1; i < parts.size(); i += 2) {
      EXPECT_TRUE(written.contains(parts[i]) || parts[i] == "schema") << parts[i];
    }
  }
}

}  // namespace
}  // namespace muster::agent
