#include "agent/watch/group_calls.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

MonoTime At(int seconds) { return MonoTime() + absl::Seconds(1000 + seconds); }

// A rank of the tutorial's script, whose group the script makes by itself.
GroupCall OfScript(int rank, int world_size = 2) {
  return {.rank = rank,
          .world_size = world_size,
          .host = "localhost",
          .port = 12355,
          .asked = "localhost:12355"};
}

// One that meets at the launcher's store.
GroupCall OfLauncher(int rank, const std::string& asked = "10.0.0.1:4000") {
  return {.rank = rank,
          .world_size = 4,
          .host = "10.0.0.1",
          .port = 4000,
          .asked = asked,
          .is_at_launcher = true};
}

class GroupCallsTest : public ::testing::Test {
 protected:
  GroupCallsTest() { calls_.StartRound(1); }

  std::vector<std::string> TellAt(int seconds, const std::map<pid_t, Connecting>& answers) {
    std::vector<std::string> texts;
    for (const GroupCalls::Line& line : calls_.Tell(answers, At(seconds)))
      texts.push_back(line.text);
    return texts;
  }

  GroupCalls calls_{/*tells_waits=*/true};
};

TEST_F(GroupCallsTest, SaysOnceThatTheRanksMeetAtTheLaunchersStoreInstead) {
  const auto line = calls_.Begin(7, OfLauncher(0, "localhost:12355"), At(0));
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->text,
            "the script asks for localhost:12355 as its master; its 4 ranks meet at "
            "the launcher's store, 10.0.0.1:4000, instead");
  EXPECT_FALSE(line->is_warning);
  EXPECT_EQ(calls_.Begin(8, OfLauncher(1, "localhost:12355"), At(0)), std::nullopt);
  calls_.Return(7, At(1));
  EXPECT_EQ(calls_.Begin(7, OfLauncher(0, "localhost:12355"), At(2)), std::nullopt);
}

TEST_F(GroupCallsTest, SaysNothingOfAScriptThatLeavesTheAddressAlone) {
  EXPECT_EQ(calls_.Begin(7, OfLauncher(0), At(0)), std::nullopt);
}

TEST_F(GroupCallsTest, SaysWhereAGroupOfTheScriptsOwnMeets) {
  const auto line = calls_.Begin(7, OfScript(0), At(0));
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(line->text, AllOf(HasSubstr("a group of 2 ranks"), HasSubstr("localhost:12355"),
                                HasSubstr("rank 0 listens")));
}

TEST_F(GroupCallsTest, NamesTheStoreOfTheScriptsOwnAtWhichNobodyListens) {
  const absl::StatusOr<GroupNote> note = ReadGroupNote(
      R"({"round": 0, "is_begun": true, "rank": 0, "world_size": 0, "host": "node1", "port": 9,)"
      R"( "asked": [], "at_launcher": false})");
  ASSERT_TRUE(note.ok() && note->call);
  EXPECT_EQ(calls_.Begin(7, *note->call, At(0)), std::nullopt);
  EXPECT_THAT(TellAt(10, {{7, Connecting::kRefused}}),
              ElementsAre("rank 0 has been waiting for 10s in TCPStore: nothing listens at node1:9 "
                          "(connection refused)"));
  EXPECT_EQ(calls_.Return(7, At(12))->text,
            "no rank waits for the store at node1:9 any longer, after 12s");
}

TEST_F(GroupCallsTest, NamesTheAddressAtWhichNobodyListens) {
  calls_.Begin(7, OfScript(1), At(0));
  EXPECT_EQ(calls_.NextDeadline(), At(10));
  EXPECT_THAT(calls_.Questions(At(9)), IsEmpty());
  ASSERT_EQ(calls_.Questions(At(10)).size(), 1u);
  EXPECT_EQ(calls_.Questions(At(10))[0].port, 12355);
  EXPECT_THAT(
      TellAt(10, {{7, Connecting::kRefused}}),
      ElementsAre("rank 1 has been waiting for 10s in init_process_group: nothing listens at "
                  "localhost:12355 (connection refused); waiting for rank 0 of that group of "
                  "2 ranks, which has not called it; rank 0 is to listen there"));
}

TEST_F(GroupCallsTest, TellsARefusedConnectionFromOneWithoutAnAnswer) {
  calls_.Begin(7, OfLauncher(3), At(0));
  EXPECT_THAT(TellAt(10, {{7, Connecting::kUnanswered}}),
              ElementsAre(AllOf(HasSubstr("no answer from 10.0.0.1:4000, the launcher's store"),
                                HasSubstr("firewall"))));
}

TEST_F(GroupCallsTest, NamesTheRankThatHasNotComeWhereAStoreServes) {
  for (int rank = 0; rank < 3; ++rank) calls_.Begin(7 + rank, OfScript(rank, 4), At(0));
  EXPECT_THAT(
      TellAt(10,
             {{7, Connecting::kRefused}, {8, Connecting::kConnected}, {9, Connecting::kConnected}}),
      ElementsAre(AllOf(HasSubstr("ranks 0-2 have been waiting"),
                        HasSubstr("at localhost:12355; waiting for rank 3"))));
}

TEST_F(GroupCallsTest, LeavesRanksThatAreConnectedToTheLaunchersStoreToIt) {
  calls_.Begin(7, OfLauncher(0), At(0));
  EXPECT_THAT(TellAt(10, {{7, Connecting::kConnected}}), IsEmpty());
  EXPECT_EQ(calls_.NextDeadline(), At(20)) << "the connection may break";
}

TEST_F(GroupCallsTest, AccusesNobodyOfAnotherNode) {
  calls_.StartRound(2);
  calls_.Begin(7, OfScript(0, 4), At(0));
  EXPECT_THAT(TellAt(10, {{7, Connecting::kRefused}}),
              ElementsAre(AllOf(HasSubstr("who is missing is on another"),
                                Not(HasSubstr("waiting for rank")))));
}

TEST_F(GroupCallsTest, RepeatsMoreAndMoreSeldomAndSaysWhenItIsOver) {
  calls_.Begin(7, OfScript(0), At(0));
  const std::map<pid_t, Connecting> answers = {{7, Connecting::kRefused}};
  EXPECT_EQ(TellAt(10, answers).size(), 1u);
  EXPECT_EQ(calls_.NextDeadline(), At(70));
  EXPECT_EQ(TellAt(70, answers).size(), 1u);
  EXPECT_EQ(calls_.NextDeadline(), At(190));
  const auto line = calls_.Return(7, At(80));
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(line->text, HasSubstr("any longer, after 80s"));
  EXPECT_TRUE(calls_.NextDeadline().is_infinite());
}

TEST_F(GroupCallsTest, ForgetsWhoHasEnded) {
  calls_.Begin(7, OfScript(1), At(0));
  EXPECT_THAT(TellAt(10, {{7, Connecting::kGone}}), IsEmpty());
  EXPECT_TRUE(calls_.NextDeadline().is_infinite());
}

TEST_F(GroupCallsTest, CountsARankThatHasReturnedAsOneThatCame) {
  calls_.Begin(7, OfScript(0), At(0));
  calls_.Begin(8, OfScript(1), At(0));
  calls_.Return(8, At(1));
  EXPECT_THAT(TellAt(10, {{7, Connecting::kConnected}}),
              ElementsAre(HasSubstr("all ranks of that group of 2 ranks have called it")));
}

TEST(GroupCalls, SaysWhereGroupsMeetAndNothingOfWaitsWhereNobodyWatches) {
  GroupCalls calls(/*tells_waits=*/false);
  calls.StartRound(1);
  EXPECT_TRUE(calls.Begin(7, OfScript(0), At(0)).has_value());
  EXPECT_TRUE(calls.NextDeadline().is_infinite());
  EXPECT_THAT(calls.Questions(At(100)), IsEmpty());
}

constexpr char kNote[] =
    R"({"rank": 1, "world_size": 2, "host": "127.0.0.1", "port": 24001, "round": 3,)"
    R"( "asked": ["localhost", 12355], "at_launcher": true, "is_begun": true})";

TEST(ReadGroupNote, ReadsWhatTheHookSays) {
  const auto note = ReadGroupNote(kNote);
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_EQ(note->round, Round(3));
  ASSERT_TRUE(note->call.has_value());
  EXPECT_EQ(note->call->rank, 1);
  EXPECT_EQ(note->call->world_size, 2);
  EXPECT_EQ(note->call->host, "127.0.0.1");
  EXPECT_EQ(note->call->port, 24001);
  EXPECT_EQ(note->call->asked, "localhost:12355");
  EXPECT_TRUE(note->call->is_at_launcher);
  EXPECT_FALSE(ReadGroupNote(R"({"round": 3, "is_begun": false})")->call.has_value());
}

TEST(ReadGroupNote, RefusesWhatTheHookDoesNotSay) {
  for (const char* text :
       {"", "[]", "{", "{\"round\": 3}", "{\"round\": \"3\", \"is_begun\": true}"}) {
    EXPECT_FALSE(ReadGroupNote(text).ok()) << text;
  }
  const auto note = [](const std::string& place) {
    return absl::StrCat("{", place,
                        R"(, "round": 3, "asked": [], "at_launcher": true, "is_begun": true})");
  };
  EXPECT_TRUE(ReadGroupNote(note(R"("rank": 1, "world_size": 2, "host": "h", "port": 1)")).ok());
  for (const char* place : {R"("rank": -1, "world_size": 2, "host": "h", "port": 1)",
                            R"("rank": 1, "world_size": 2, "host": 7, "port": 1)",
                            R"("rank": 1, "world_size": 2, "host": "h", "port": 70000)",
                            R"("rank": 1, "world_size": 99999999, "host": "h", "port": 1)"}) {
    EXPECT_FALSE(ReadGroupNote(note(place)).ok()) << place;
  }
}

TEST(ReadGroupNote, ShowsNoControlCharactersOfAWorker) {
  const auto note =
      ReadGroupNote(R"({"rank": 0, "world_size": 2, "host": "h", "port": 1, "round": 3,)"
                    R"( "asked": ["\u001b[31mred\n", 5], "at_launcher": false, "is_begun": true})");
  ASSERT_TRUE(note.ok());
  EXPECT_EQ(note->call->asked, "\\x1b[31mred\\n:5");
}

}  // namespace
}  // namespace muster::agent
