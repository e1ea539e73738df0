// Two rank 0s with one checkpoint directory, the older of which was stopped and goes on late: what
// the newer one has published stays, and nothing is published behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/fake_agent.h"
#include "tests/support/files.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kLong = absl::Seconds(90);

class CheckpointRace : public SeveralNodes {
 protected:
  Arguments Training(const Arguments& more) const {
    return Arguments{MusterTrainBinary(),
                     "--data",
                     absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                     "--layers=1",
                     "--heads=2",
                     "--width=16",
                     "--context=16",
                     "--mode=ordered",
                     "--sample_tokens=0",
                     "--save",
                     Out("saved"),
                     "--resume",
                     Out("saved")} +
           more;
  }
  // The only rank of its job.
  Subprocess StartUnder(const FakeAgent& agent, const Arguments& more) const {
    Environment changes;
    for (const auto& [name, value] : agent.EnvironmentOf(0, 1)) changes[name] = value;
    return StartProgram(Training(more), changes);
  }

  // What the checkpoints in place say of who wrote them, by step.
  std::vector<std::pair<std::string, std::string>> WritersBy(const std::string& field) const {
    std::vector<std::pair<std::string, std::string>> writers;
    for (const std::string& file : FilesBelow(Out("saved"))) {
      absl::string_view step = file;
      if (!absl::ConsumePrefix(&step, "step_") || !absl::ConsumeSuffix(&step, "/training.json"))
        continue;
      const auto json = nlohmann::json::parse(ReadOut("saved/" + file));
      writers.emplace_back(step, json.at("written_by").at(field).get<std::string>());
    }
    return writers;
  }
  static void SignalAll(const std::vector<pid_t>& pids, int signal) {
    for (const pid_t pid : pids) kill(pid, signal);
  }
};

// The hardest place: the answer has been yes, and the rename comes when it is not true any more.
TEST_F(CheckpointRace, IsLostByTheOlderInstanceThatWasStoppedBetweenItsCommitAndItsRename) {
  FakeAgent older(Round(0), Instance(1));
  FakeAgent newer(Round(0), Instance(2));
  std::atomic<pid_t> stopped = 0;
  older.AtNextCommit([&](pid_t pid) {
    kill(pid, SIGSTOP);
    stopped = pid;
  });
  Subprocess late = StartUnder(older, {"--steps=1000000", "--save_every=3"});
  ASSERT_TRUE(WaitUntil([&] { return stopped != 0; }, kLong));
  EXPECT_THAT(WritersBy("instance"), IsEmpty());

  const SubprocessResult first = StartUnder(newer, {"--steps=6", "--save_every=3"}).Wait(kLong);
  EXPECT_THAT(first, ExitsWith(0));
  kill(stopped, SIGCONT);
  EXPECT_TRUE(late.WaitForOutput("not saved after step 6", kLong));
  EXPECT_THAT(late.Wait(absl::ZeroDuration()).out, Not(HasSubstr("\nsaved after step 3 ")));
  EXPECT_THAT(WritersBy("instance"),
              UnorderedElementsAre(Pair("00000003", "2"), Pair("00000006", "2")));
}

TEST_F(CheckpointRace, IsGivenUpAtOnceByALastSaveThatIsRefusedForGood) {
  FakeAgent agent(Round(0));
  agent.AnswerCommitsWith(absl::AbortedError("round 0 is over for this node; the newest is 1"));
  const SubprocessResult result = StartUnder(agent, {"--steps=3"}).Wait(kLong);
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err,
              HasSubstr("muster-train: not saved after step 3: round 0 is over for this "
                        "node; the newest is 1; earlier checkpoints stay\n"));
  EXPECT_THAT(WritersBy("round"), IsEmpty());
}

TEST_F(CheckpointRace, IsNotLostByALastSaveThatIsRefusedForNow) {
  FakeAgent agent(Round(0));
  agent.AnswerCommitsWith(absl::UnavailableError("not now"));
  Subprocess last = StartUnder(agent, {"--steps=3"});
  ASSERT_TRUE(
      last.WaitForOutput("not saved after step 3: not now; earlier checkpoints stay", kLong));
  agent.AnswerCommitsWith(absl::OkStatus());
  EXPECT_THAT(last.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(WritersBy("round"), UnorderedElementsAre(Pair("00000003", "0")));
}

// The same with a server that decides, and agents that are stopped as well.
TEST_F(CheckpointRace, IsLostByANodeThatWasStoppedAndReplaced) {
  Subprocess server = StartProgram({MusterdBinary(), "--listen=" + endpoint()});
  ASSERT_TRUE(server.WaitForOutput("listening"));
  Subprocess late =
      StartElastic(1, "1", Training({"--steps=1000000000", "--save_every=20"}), {{"NODE", "late"}});
  ASSERT_TRUE(late.WaitForOutput("saved after step 40 ", kLong));
  const std::vector<pid_t> pids = ProcessesWith("NODE=late");
  SignalAll(pids, SIGSTOP);

  const std::string last = WritersBy("round").back().first;
  const std::string a_little_more =
      ShellScript("train", absl::StrCat("exec ", absl::StrJoin(Training({"--save_every=20"}), " "),
                                        " --steps=$(expr ", last, " + 200)\n"));
  Subprocess next = StartElastic(2, "1", {a_little_more});
  ASSERT_TRUE(next.WaitForOutput("saved after step ", kLong));
  SignalAll(pids, SIGCONT);
  EXPECT_THAT(next.Wait(kLong), ExitsWith(0));
  EXPECT_TRUE(late.Wait(kLong).ended);
  std::string round = "0";
  for (const auto& [step, writer] : WritersBy("round")) {
    EXPECT_GE(writer, round) << "step " << step;
    round = writer;
  }
  EXPECT_NE(round, "0");
  server.Signal(SIGTERM);
  EXPECT_TRUE(server.Wait().ended);
}

}  // namespace
}  // namespace muster::testing
