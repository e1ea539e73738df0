// The hang watch beside programs of PyTorch that know nothing of it (programs/torch_hangs.py), over
// Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/integration/torch_jobs.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kReported[] = "this is only reported (--watch=report)";
constexpr char kNotCalled[] =
    "rank 1 has not called all_reduce #6 (group default_pg, 4096 bytes f32); rank 0 waits";

constexpr char kNeverCame[] = "rank 1 has not called init_process_group; rank 0 waits";

// So long a grace gives the question what the ranks called last the time that a loaded machine
// needs (rendezvous/hangs/judge/abort_watch.h).
constexpr char kLongGrace[] = "--shutdown_timeout=1800";
// Rank 0 is innocent: it receives more than it has asked for.
constexpr char kRankOneCalled[] =
    "rank 0 has aborted. Last calls: rank 1 called all_reduce #6 (group default_pg, 8192 bytes "
    "f32)";

class TorchHangs : public TorchJobs {
 protected:
  TorchHangs() : TorchJobs("torch_hangs.py") {}
  Subprocess StartTwo(const std::string& how, const Arguments& options) {
    return StartJob(how, 2, options);
  }
  void ExpectVerdicts(std::vector<Said> programs) {
    for (Said& each : programs) each.said.insert(0, "hang: ");
    ExpectSaid(programs, {.num_local = 2}, {"--hang_timeout=12"});
  }
};

TEST_F(TorchHangs, AreEndedAndTheJobGoesOnWithTheNextAttempt) {
  Subprocess sleeps = StartTwo("sleeps", {"--max_restarts=1", "--hang_timeout=12"});
  Subprocess stops = StartTwo("stops", {"--max_restarts=1"});
  const SubprocessResult slept = sleeps.Wait(kPatience);
  EXPECT_THAT(slept, ExitsWith(0));
  EXPECT_THAT(slept.err, AllOf(HasSubstr(absl::StrCat("hang: ", kNotCalled)),
                               HasSubstr("rank 1 in next_batch at torch_hangs.py:"),
                               HasSubstr("rank 0 in all_reduce at distributed_c10d.py:")));
  const SubprocessResult stopped = stops.Wait(kPatience);
  EXPECT_THAT(stopped, ExitsWith(0));
  EXPECT_THAT(stopped.err, HasSubstr("hang: rank 1 is stopped by a signal and cannot take part in "
                                     "all_reduce #6"));
  for (const std::string& file : FilesBelow(Out("logs"))) {
    if (!absl::StartsWith(file, "sleeps") || !absl::EndsWith(file, "hang_0_1.json")) continue;
    const auto report = nlohmann::json::parse(ReadFile(Out("logs/") + file), nullptr, false);
    EXPECT_EQ(report["verdict"]["culprits"].dump(), "[1]");
    EXPECT_EQ(report["python_stacks"].size(), 2u);
  }
}

TEST_F(TorchHangs, NameARankThatDoesSomethingElse) {
  ExpectVerdicts({{"skips", kNotCalled, "rank 1 in hang at torch_hangs.py:"},
                  {"child", kNotCalled, "_get_data at dataloader.py:"},
                  {"spins", kNotCalled, "rank 1 in spin at torch_hangs.py:"},
                  {"holds_python", kNotCalled, "rank 1 in hold_python at torch_hangs.py:"},
                  {"lock", kNotCalled, "rank 1 in lock_for_ever at torch_hangs.py:"}});
}

TEST_F(TorchHangs, NameWhatTheRanksCallDifferently) {
  ExpectVerdicts(
      {{"operation",
        "rank 0 called all_reduce #6 (group default_pg, 4096 bytes f32) and rank 1 called "
        "broadcast "
        "#6 (group default_pg, 32 bytes f32): which of them is right cannot be told",
        "rank 1 in broadcast at distributed_c10d.py:"},
       {"runs_out",
        "rank 0 called all_reduce #6 (group default_pg, 4096 bytes f32) and rank 1 called barrier "
        "#6 (group default_pg): which of them is right cannot be told",
        "rank 1 in barrier at distributed_c10d.py:"},
       {"orders",
        "ranks 0 and 1 wait for each other in a circle: rank 0 waits in all_reduce #1 (group 1, 32 "
        "bytes f32) for rank 1, rank 1 waits in all_reduce #1 (group 2, 32 bytes f32) for rank 0",
        "ranks 0 and 1 in all_reduce at distributed_c10d.py:"},
       {"subgroup", "rank 1 has not called all_reduce #1 (group 1, 32 bytes f32); rank 0 waits",
        "rank 1 in hang at torch_hangs.py:"},
       {"new_group", "rank 1 has not called new_group #2 (group default_pg); rank 0 waits",
        "rank 1 in hang at torch_hangs.py:"}});
}

// Rank 1 tells nothing of itself, so that the store alone knows: first a notice, after a minute,
// then the verdict at the hard limit of the start, at least three times --hang_timeout. One that
// comes late, before that, is not accused.
TEST_F(TorchHangs, NameARankThatNeverComesToInitProcessGroup) {
  Subprocess job = StartTwo("never_comes", {"--max_restarts=1", "--hang_timeout=24"});
  Subprocess late = StartTwo("comes_late", {"--max_restarts=1", "--hang_timeout=60"});
  const SubprocessResult result = job.Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, AllOf(HasSubstr(absl::StrCat("warning: ", kNeverCame)),
                                HasSubstr(absl::StrCat("hang: ", kNeverCame)),
                                HasSubstr("rank 1 in main at torch_hangs.py:"),
                                HasSubstr("rank 1 at PyTorch's store")));
  const SubprocessResult came = late.Wait(kPatience);
  EXPECT_THAT(came, ExitsWith(0));
  EXPECT_THAT(came.err, AllOf(HasSubstr("all 2 ranks are there now"), Not(HasSubstr("hang:")),
                              Not(HasSubstr("restart 1"))));
}

TEST_F(TorchHangs, NameARankThatDoesNotComeToABarrierOfTheStore) {
  ExpectVerdicts({{"store_barrier",
                   "rank 1 has not called barrier '/between epochs' of PyTorch's store; "
                   "rank 0 waits",
                   "rank 1 in hang at torch_hangs.py:"}});
}

TEST_F(TorchHangs, AskTheSurvivorsOfAnAbortWhatTheyCalled) {
  const SubprocessResult result = StartTwo("size", {kLongGrace}).Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(128 + SIGABRT));
  EXPECT_THAT(result.err, HasSubstr(kRankOneCalled));
}

// With whom a rank waits, PyTorch's frames tell, where it is in one of them.
TEST_F(TorchHangs, NameTheRankThatDoesNotSendAndAccuseNobodyWhereItIsNotKnown) {
  Subprocess received = StartTwo("recv", {"--hang_timeout=12"});
  Subprocess awaited = StartTwo("pipeline", {"--hang_timeout=12"});
  EXPECT_TRUE(received.WaitForOutput(
      "rank 0 has not called the send for which rank 1 waits in recv from rank 0", kPatience));
  EXPECT_TRUE(
      awaited.WaitForOutput("rank 1 waits in a send or receive, or something else (group "
                            "default_pg), with whom is not known; rank 0 has gone on to "
                            "all_reduce #6",
                            kPatience));
  // Longer than the limit.
  EXPECT_FALSE(awaited.WaitForOutput("hang:", absl::Seconds(10)));
  for (Subprocess* job : {&received, &awaited}) job->Signal(SIGTERM);
  EXPECT_THAT(received.Wait(kPatience).err, HasSubstr("in hang at torch_hangs.py:"));
  EXPECT_THAT(awaited.Wait(kPatience).err,
              AllOf(HasSubstr("in hang at torch_hangs.py:"), Not(HasSubstr("hang:"))));
}

TEST_F(TorchHangs, AreNoneWhereAJobOnlyTakesLong) {
  std::vector<Subprocess> jobs;
  for (const char* how : {"checkpoint", "first_step", "straggler"}) {
    jobs.push_back(StartTwo(how, {"--max_restarts=1"}));
  }
  for (Subprocess& job : jobs) {
    const SubprocessResult result = job.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
  }
}

class TorchHangsOverNodes : public TorchHangs {
 protected:
  std::vector<Subprocess> StartTwoNodes(const std::string& how, const Arguments& options) {
    return StartAgents(how, {.num_nodes = 2, .num_local = 1}, options);
  }
  // The results of two nodes with a rank each, once both have reported the hang.
  std::vector<SubprocessResult> ReportedByBothNodes(const std::string& how) {
    std::vector<Subprocess> nodes = StartTwoNodes(how, {"--hang_timeout=12"});
    for (Subprocess& node : nodes) EXPECT_TRUE(node.WaitForOutput(kReported, kPatience));
    for (Subprocess& node : nodes) node.Signal(SIGINT);
    std::vector<SubprocessResult> results;
    for (Subprocess& node : nodes) results.push_back(node.Wait(kPatience));
    return results;
  }
  // Rank 0 aborts, and what rank 1 has called is said by both nodes.
  void ExpectAbortOnBothNodes(const std::string& how);
};

void TorchHangsOverNodes::ExpectAbortOnBothNodes(const std::string& how) {
  std::vector<Subprocess> nodes = StartTwoNodes(how, {kLongGrace});
  for (int node = 0; node < 2; ++node) {
    const SubprocessResult result = nodes[node].Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(128 + SIGABRT));
    EXPECT_THAT(result.err, HasSubstr(kRankOneCalled));
    const std::string logs = absl::StrCat(Out("logs"), node);
    int num_reports = 0;
    for (const std::string& file : FilesBelow(logs)) {
      if (!absl::EndsWith(file, "abort_0_1.json")) continue;
      ++num_reports;
      const auto report =
          nlohmann::json::parse(ReadFile(absl::StrCat(logs, "/", file)), nullptr, false);
      EXPECT_EQ(report["aborted"].dump(), "[0]");
      EXPECT_EQ(report["last_calls"][0]["ranks"].dump(), "[1]");
      EXPECT_EQ(report["last_calls"][0]["operation"]["bytes"], 8192);
    }
    EXPECT_EQ(num_reports, 1);
  }
}

TEST_F(TorchHangsOverNodes, NameARankOfAnotherNodeOnEveryConsole) {
  for (const SubprocessResult& node : ReportedByBothNodes("skips")) {
    EXPECT_THAT(node.err, AllOf(HasSubstr(absl::StrCat("hang: ", kNotCalled)),
                                HasSubstr(absl::StrCat("rank 1 on ", AddressOf(2), " (pid")),
                                HasSubstr("rank 1 in hang at torch_hangs.py:"),
                                HasSubstr("rank 0 in all_reduce at distributed_c10d.py:")));
  }
}

// Its agent alone sees its process, and the store on the other node that it has not come.
TEST_F(TorchHangsOverNodes, NameARankOfAnotherNodeThatNeverComes) {
  for (const SubprocessResult& node : ReportedByBothNodes("never_comes")) {
    EXPECT_THAT(node.err, AllOf(HasSubstr(absl::StrCat("hang: ", kNeverCame)),
                                HasSubstr(absl::StrCat("rank 1 on ", AddressOf(2), " (pid")),
                                HasSubstr("rank 1 at PyTorch's store")));
  }
}

// Rank 1 lives, and is asked before its node signals it, which the end of rank 0 has it do.
TEST_F(TorchHangsOverNodes, AskTheRanksOfAllNodesWhatTheyCalledWhereOneHasAborted) {
  ExpectAbortOnBothNodes("size");
}

// Rank 1 ends as well, by the exception of its broken connection, and has left what it called.
TEST_F(TorchHangsOverNodes, KnowWhatARankCalledThatHasEndedAfterTheOneThatAborted) {
  ExpectAbortOnBothNodes("size_ends");
}

}  // namespace
}  // namespace muster::testing
