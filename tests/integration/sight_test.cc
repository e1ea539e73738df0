// `muster status` and `muster stacks` of real jobs: on one node without a port, on several, of a
// hang, a restart, a stopped worker and a stopped server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/base/exit_codes.h"
#include "proto/io/unique_fd.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(90);
constexpr char kSleeps[] = "echo ready; echo $$ > $OUT/pid.$RANK; exec sleep 1000\n";

class Sight : public SeveralNodes {
 protected:
  std::string Sleeping() const { return ShellScript("sleeps.sh", kSleeps); }
  // A job on this node alone, with a socket and no endpoint.
  Subprocess StartHere(const std::string& id, const Arguments& rest) const {
    return Start(Arguments{"run", "--rdzv_id=" + id} + rest);
  }
  SubprocessResult Status(const Arguments& rest = {}, const Environment& changes = {}) const {
    return Run(Arguments{"status"} + rest, changes);
  }
  // Asks again until the exit code is this one, and the answer holds all of `words`: a job that
  // has just been started waits too, but for its nodes.
  SubprocessResult StatusOnce(int exit_code, const Arguments& rest = {},
                              const std::vector<std::string>& words = {}) const {
    SubprocessResult result;
    WaitUntil(
        [&] {
          result = Status(rest);
          return result.exit_code == exit_code &&
                 std::all_of(words.begin(), words.end(), [&](const std::string& word) {
                   return absl::StrContains(result.out, word);
                 });
        },
        kLong);
    return result;
  }
  Arguments Endpoint() const { return {"--rdzv_endpoint=" + endpoint()}; }
  static void End(Subprocess& job) {
    job.Signal(SIGTERM);
    EXPECT_THAT(job.Wait(kLong), ExitsWith(128 + SIGTERM));
  }
  // Stops rank 1 of a job of hanging_rank for as long as a verdict takes.
  void ExpectHealthyAgainAfterAVerdict() const {
    ASSERT_THAT(StatusOnce(0, {}, {"step"}), ExitsWith(0));
    const SubprocessResult stacks = Run({"stacks", "--rank=1"});
    const std::vector<std::string> after = absl::StrSplit(stacks.out, "pid ");
    int pid = 0;
    ASSERT_TRUE(after.size() > 1 && absl::SimpleAtoi(*absl::StrSplit(after[1], ',').begin(), &pid))
        << stacks.out << stacks.err;
    ASSERT_EQ(kill(pid, SIGSTOP), 0);
    EXPECT_THAT(StatusOnce(kExitJobHangs).out, HasSubstr("rank 1 is stopped by a signal"));
    ASSERT_EQ(kill(pid, SIGCONT), 0);
    EXPECT_THAT(StatusOnce(0), ExitsWith(0));
  }
  std::string SocketOfTheJob() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory())) {
      if (entry.path().filename() == "look.sock") return entry.path();
    }
    return "";
  }
};

TEST_F(Sight, OfAJobOnOneNodeNeedsNoPort) {
  Subprocess job = StartHere("here", {"--nproc_per_node=2", Sleeping()});
  const SubprocessResult result = StatusOnce(0);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("job here: healthy"), HasSubstr("1 of 1 node run 2 ranks"),
                    HasSubstr("0-1         running")));
  EXPECT_THAT(Status({"here"}), ExitsWith(0));
  const SubprocessResult other = Status({"elsewhere"});
  EXPECT_THAT(other, ExitsWith(kExitFailure));
  EXPECT_THAT(other.err, HasSubstr("no job 'elsewhere' of yours runs on this node (here does)"));
  const auto json = nlohmann::json::parse(Status({"--json"}).out, nullptr, false);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["job"], "here");
  EXPECT_EQ(json["round"]["world_size"], 2);
  End(job);
  const SubprocessResult after = Status();
  EXPECT_THAT(after, ExitsWith(kExitFailure));
  EXPECT_THAT(after.err, HasSubstr("no job of yours runs on this node"));
}

TEST_F(Sight, OfSeveralJobsIsALineForEach) {
  Subprocess first = StartHere("first", {Sleeping()});
  Subprocess second = StartHere("second", {Sleeping()});
  const SubprocessResult result = StatusOnce(0, {}, {"first: healthy", "second: healthy"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("first: healthy"), HasSubstr("second: healthy")))
      << result.err;
  EXPECT_THAT(Run({"stacks"}).err, HasSubstr("several jobs of yours run here: name one of"));
  End(first);
  End(second);
}

TEST_F(Sight, FollowsTheStepsOfAJobOnTwoNodes) {
  Subprocess first = StartElastic(1, "2", {Built("hanging_rank"), "slow"});
  ASSERT_TRUE(first.WaitForOutput("hosting", kLong));
  const SubprocessResult waiting = StatusOnce(kExitJobWaits, Endpoint());
  EXPECT_THAT(waiting.out, HasSubstr("waiting for 1 more of 2 nodes"));
  Subprocess second = StartElastic(2, "2", {Built("hanging_rank"), "slow"});
  nlohmann::json json;
  EXPECT_TRUE(WaitUntil(
      [&] {
        json = nlohmann::json::parse(Status(Endpoint() + Arguments{"--json", "elastic"}).out,
                                     nullptr, false);
        return json.is_object() && json["progress"]["steps_per_second"] > 0;
      },
      kLong));
  EXPECT_EQ(json["health"]["state"], "healthy") << json;
  EXPECT_EQ(json["members"].size(), 2u);
  EXPECT_EQ(json["told_by"], "the rendezvous");
  // The job is seen by the socket of either agent, and by the list of jobs.
  EXPECT_THAT(Status().out, HasSubstr("2 of 2 nodes run 2 ranks"));
  EXPECT_THAT(Status({}, {{"MUSTER_ENDPOINT", endpoint()}}).out, HasSubstr("job elastic: healthy"));
  EXPECT_THAT(Status(Endpoint() + Arguments{"other"}).err,
              HasSubstr("no job 'other' is known here"));
  first.Signal(SIGINT);
  first.Wait(kLong);
  second.Wait(kLong);
}

TEST_F(Sight, NeedsTheSecret) {
  Subprocess job = StartElastic(1, "2", {Sleeping()});
  ASSERT_TRUE(job.WaitForOutput("hosting", kLong));
  EXPECT_THAT(Status(Endpoint() + Arguments{"elastic"}, {{"MUSTER_TOKEN", std::string(64, 'b')}}),
              ExitsWith(kExitRefused));
  job.Signal(SIGINT);
  job.Wait(kLong);
}

TEST_F(Sight, SaysThatARankHangs) {
  Subprocess job = StartHere("hangs", {"--nproc_per_node=2", "--watch=report", "--hang_timeout=12",
                                       Built("hanging_rank"), "sleeps"});
  const SubprocessResult notice = StatusOnce(kExitJobWaits, {}, {"rank 1 has"});
  EXPECT_THAT(notice.out, HasSubstr("rank 1 has not called"));
  const SubprocessResult verdict = StatusOnce(kExitJobHangs);
  EXPECT_THAT(verdict.out, AllOf(HasSubstr("job hangs: hung"), HasSubstr("rank 1"),
                                 HasSubstr("--hang_timeout")));
  const SubprocessResult stacks = Run({"stacks"});
  EXPECT_THAT(stacks, ExitsWith(0));
  EXPECT_THAT(stacks.out, AllOf(HasSubstr("rank 1:"), HasSubstr("SleepInTheDataLoader")));
  EXPECT_THAT(Run({"stacks", "--rank=0"}).out, Not(HasSubstr("SleepInTheDataLoader")));
  End(job);
}

TEST_F(Sight, SaysThatAJobGoesOnAfterAVerdict) {
  Subprocess job =
      StartHere("goes_on", {"--nproc_per_node=2", "--watch=report", Built("hanging_rank"), "slow"});
  ExpectHealthyAgainAfterAVerdict();
  EXPECT_TRUE(job.WaitForOutput("it goes on: rank 1 is stopped by a signal", kLong));
  End(job);
}

TEST_F(Sight, SaysThatAJobOnTwoNodesGoesOnAfterAVerdict) {
  Subprocess first = StartElastic(1, "2", {"--watch=report", Built("hanging_rank"), "slow"});
  Subprocess second = StartElastic(2, "2", {"--watch=report", Built("hanging_rank"), "slow"});
  ExpectHealthyAgainAfterAVerdict();
  for (Subprocess* node : {&first, &second}) {
    EXPECT_TRUE(node->WaitForOutput("it goes on: rank 1 is stopped by a signal", kLong));
  }
  first.Signal(SIGINT);
  first.Wait(kLong);
  second.Wait(kLong);
}

TEST_F(Sight, CountsARestartAndSaysWhyItCame) {
  const std::string script =
      ShellScript("fails_once.sh",
                  "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && { sleep 1; exit 7; }\nexec sleep 1000\n");
  Subprocess job = StartHere("restarts", {"--max_restarts=2", script});
  nlohmann::json json;
  EXPECT_TRUE(WaitUntil(
      [&] {
        const SubprocessResult result = Status({"--json"});
        json = nlohmann::json::parse(result.out, nullptr, false);
        return json.is_object() && json["restarts"]["used"] == 1 && result.exit_code == 0;
      },
      kLong));
  EXPECT_EQ(json["round"]["round"], 1) << json;
  EXPECT_THAT(json["last_incident"]["text"].get<std::string>(), HasSubstr("rank 0"));
  End(job);
}

TEST_F(Sight, ShowsAWorkerThatIsStopped) {
  Subprocess job = StartHere("stopped", {"--nproc_per_node=2", Sleeping()});
  ASSERT_TRUE(WaitForOut("pid.1"));
  int pid = 0;
  ASSERT_TRUE(WaitUntil([&] { return absl::SimpleAtoi(ReadOut("pid.1"), &pid); }, kLong));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const SubprocessResult stacks = Run({"stacks", "--rank=1"});
  EXPECT_THAT(stacks, ExitsWith(0));
  EXPECT_THAT(stacks.out, AllOf(HasSubstr(absl::StrCat("pid ", pid)), HasSubstr("stopped")));
  EXPECT_THAT(Status(), ExitsWith(0));
  kill(pid, SIGCONT);
  End(job);
}

// Its stack is cut off at its outermost frames, wherever it ends.
TEST_F(Sight, ShowsARankThatRecursesForEver) {
  const std::string program = directory() + "/recurses.py";
  WriteFile(program,
            "import os, sys, time\n"
            "sys.setrecursionlimit(10 ** 9)\n"
            "def deeper(depth):\n"
            "    if depth == 200000:\n"
            "        open(os.environ['OUT'] + '/deep.' + os.environ['RANK'], 'w').close()\n"
            "        time.sleep(1000)\n"
            "    deeper(depth + 1)\n"
            "deeper(0) if os.environ['RANK'] == '1' else time.sleep(1000)\n");
  Subprocess job = StartHere("deep", {"--nproc_per_node=2", program});
  ASSERT_TRUE(WaitForOut("deep.1"));
  const SubprocessResult stacks = Run({"stacks"});
  EXPECT_THAT(stacks, ExitsWith(0));
  EXPECT_THAT(stacks.out, AllOf(HasSubstr("rank 1:"), HasSubstr("deeper at ")));
  EXPECT_LT(stacks.out.size(), size_t{32} << 10);
  EXPECT_THAT(Status(), ExitsWith(0));
  End(job);
}

TEST_F(Sight, NamesTheNodeThatIsSilentInEachCommand) {
  const Arguments two = {"--nproc_per_node=2", "--redirects=3",
                         "--log_dir=" + directory() + "/logs", Sleeping()};
  Subprocess first = StartElastic(1, "2", two);
  ASSERT_TRUE(first.WaitForOutput("hosting", kLong));
  Subprocess second = StartElastic(2, "2", two);
  for (const int rank : {0, 1, 2, 3}) ASSERT_TRUE(WaitForOut(absl::StrCat("pid.", rank)));
  second.Signal(SIGSTOP);
  const Arguments away = Endpoint() + Arguments{"elastic"};
  const SubprocessResult top = Run(Arguments{"top"} + away);
  EXPECT_THAT(top.out + top.err, HasSubstr("has not answered within 2s"));
  const SubprocessResult logs = Run(Arguments{"logs"} + away);
  EXPECT_THAT(logs.out + logs.err, HasSubstr("has not answered within 4s"));
  EXPECT_THAT(StatusOnce(kExitJobWaits, away, {"lost"}).out, HasSubstr("1 lost"));
  second.Signal(SIGKILL);
  second.Wait(kLong);
  first.Signal(SIGTERM);
  first.Wait(kLong);
}

TEST_F(Sight, OfAJobWhoseServerIsStoppedIsToldByTheAgent) {
  Subprocess daemon = StartProgram({MusterdBinary(), "--listen=" + endpoint()});
  ASSERT_TRUE(daemon.WaitForOutput("listening", kLong));
  Subprocess job = StartElastic(1, "1", {Sleeping()});
  EXPECT_THAT(StatusOnce(0), ExitsWith(0));
  daemon.Signal(SIGSTOP);
  const SubprocessResult result = Status();
  EXPECT_THAT(result, ExitsWith(kExitJobWaits));
  EXPECT_THAT(result.out, AllOf(HasSubstr("the rendezvous does not answer"),
                                HasSubstr("told by the agent of")));
  const SubprocessResult away = Status(Endpoint() + Arguments{"--timeout=1", "elastic"});
  EXPECT_THAT(away, ExitsWith(kExitFailure));
  EXPECT_THAT(away.err, HasSubstr("the rendezvous at"));
  // Stacks of this node are there all the same.
  EXPECT_THAT(Run({"stacks"}).out, AllOf(HasSubstr("rank 0:"), HasSubstr("the other nodes: ")));
  daemon.Signal(SIGCONT);
  End(job);
  daemon.Signal(SIGTERM);
  daemon.Wait(kLong);
}

TEST_F(Sight, OfAnEndedJobSaysHowItEnded) {
  Subprocess daemon = StartProgram({MusterdBinary(), "--listen=" + endpoint()});
  ASSERT_TRUE(daemon.WaitForOutput("listening", kLong));
  EXPECT_THAT(StartElastic(1, "1", {ShellScript("fails.sh", "exit 7\n")}).Wait(kLong),
              ExitsWith(7));
  const SubprocessResult result = Status(Endpoint() + Arguments{"elastic"});
  EXPECT_THAT(result, ExitsWith(kExitJobFailed));
  EXPECT_THAT(result.out, HasSubstr("(exit code 7)"));
  daemon.Signal(SIGTERM);
  daemon.Wait(kLong);
}

TEST_F(Sight, IsThereWhileSomebodyLeavesConnectionsOpen) {
  Subprocess job = StartHere("crowded", {Sleeping()});
  EXPECT_THAT(StatusOnce(0), ExitsWith(0));
  const std::string path = SocketOfTheJob();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  std::vector<UniqueFd> open;
  for (int i = 0; i < 300; ++i) {
    open.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(open.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
  }
  EXPECT_THAT(Status(), ExitsWith(0));
  End(job);
}

}  // namespace
}  // namespace muster::testing
