// What is said of programs of PyTorch over two, three and four ranks of which the last is at fault,
// and of their healthy twins (programs/torch_verdicts.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/torch_jobs.h"
#include "tests/support/files.h"
#include "tests/support/hung_file_system.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A program, and how the line begins that is said of it: of two ranks, where nobody can tell which
// of them is right, another.
struct Program {
  const char* how;
  std::string of_two;
  std::string of_more;
};

size_t Count(const std::string& text, const std::string& part) {
  const std::vector<std::string> parts = absl::StrSplit(text, part);
  return parts.size() - 1;
}

class TorchVerdicts : public TorchJobs, public ::testing::WithParamInterface<int> {
 protected:
  TorchVerdicts() : TorchJobs("torch_verdicts.py") {}

  static int size() { return GetParam(); }
  static int odd() { return size() - 1; }
  // "rank 0", "ranks 0-2".
  static std::string Others() {
    return size() == 2 ? "rank 0" : size() == 3 ? "ranks 0 and 1" : "ranks 0-2";
  }
  static std::string Odd() { return absl::StrCat("rank ", odd()); }

  Subprocess StartOne(const std::string& how, const Arguments& options,
                      const Environment& changes = {}) {
    return StartJob(how, size(), options, changes);
  }
  // Each ends by the verdict about it, which `begins` the line.
  void ExpectVerdicts(const std::vector<Program>& programs) {
    std::vector<Said> said;
    for (const Program& each : programs) {
      said.push_back({each.how, absl::StrCat("hang: ", size() == 2 ? each.of_two : each.of_more)});
    }
    ExpectSaid(said, {.num_local = size()}, {"--hang_timeout=15"});
  }
};

// All of them take minutes: $MUSTER_TEST_ALL_RANKS asks for them. What is said over two, three and
// four ranks is in tests/unit/rendezvous/hangs/evidence/diagnosis_torch_test.cc.
std::vector<int> Sizes() {
  return std::getenv("MUSTER_TEST_ALL_RANKS") != nullptr ? std::vector<int>({2, 3, 4})
                                                         : std::vector<int>({3});
}
INSTANTIATE_TEST_SUITE_P(Ranks, TorchVerdicts, ::testing::ValuesIn(Sizes()));

TEST_P(TorchVerdicts, BeginWithTheRankAtFault) {
  const std::string world = "(group default_pg";
  const std::string cannot_tell = absl::StrCat("rank 0 called all_reduce #6 ", world);
  ExpectVerdicts({
      {"operation", cannot_tell,
       absl::StrCat(Odd(), " called broadcast #6 ", world, ", 32 bytes f32) where ", Others(),
                    " called all_reduce #6 ", world)},
      {"skips", absl::StrCat(Odd(), " has not called all_reduce #6 ", world),
       absl::StrCat(Odd(), " has not called all_reduce #6 ", world)},
      {"new_group", absl::StrCat(Odd(), " has not called new_group #0 ", world),
       absl::StrCat(Odd(), " has not called new_group #0 ", world)},
      {"receive", absl::StrCat(Odd(), " has gone on to all_reduce #6 ", world),
       absl::StrCat(Odd(), " has gone on to all_reduce #6 ", world)},
      {"subgroup", absl::StrCat(Odd(), " has not called all_reduce #1 (group 1"),
       absl::StrCat(Odd(), " has not called all_reduce #1 (group 1")},
      {"orders", "ranks 0 and 1 wait for each other in a circle: rank 0 waits in all_reduce #1",
       absl::StrCat(Odd(), " waits in all_reduce #1 (group 2, 32 bytes f32) where ", Others(),
                    " wait in all_reduce #1 (group 1, 32 bytes f32)")},
      {"stops",
       absl::StrCat(Odd(), " is stopped by a signal and cannot take part in all_reduce #6"),
       absl::StrCat(Odd(), " is stopped by a signal and cannot take part in all_reduce #6")},
      {"first", absl::StrCat(Odd(), " has not called all_reduce #1 ", world),
       absl::StrCat(Odd(), " has not called all_reduce #1 ", world)},
  });
}

TEST_P(TorchVerdicts, BeginWithTheRankThatLeavesItsLoopEarly) {
  const std::string barrier = absl::StrCat(Odd(), " called barrier #");
  ExpectVerdicts({{"accelerate", "rank 0 called all_reduce #", barrier},
                  {"trainer", "rank 0 called all_reduce #", absl::StrCat(Odd(), " called ")},
                  {"lightning", "rank 0 called all_reduce #", barrier},
                  {"fsdp", "rank 0 called all_gather #", barrier}});
}

// Gloo aborts a rank that receives more than it expects, which is the one with the odd size for two
// ranks in no case that can be told.
TEST_P(TorchVerdicts, OfARankThatIsAbortedForAnotherOnesSizeIsThatOther) {
  const SubprocessResult result = StartOne("size", {"--shutdown_timeout=1800"}).Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(128 + SIGABRT));
  const std::string called =
      absl::StrCat(Odd(), " called all_reduce #6 (group default_pg, 8192 bytes f32) where ",
                   Others(), " called all_reduce #6 (group default_pg, 4096 bytes f32)");
  if (size() == 2) {
    EXPECT_THAT(result.err, HasSubstr("so rank 0 may be innocent"));
    EXPECT_THAT(result.err, HasSubstr("Root Cause (first observed failure):"));
    return;
  }
  EXPECT_THAT(result.err, AllOf(HasSubstr(absl::StrCat("Root Cause:\n  ", called, "\n")),
                                HasSubstr("First observed failure, which is not at fault:"),
                                HasSubstr("and is not at fault"), Not(HasSubstr("is not known"))));
}

TEST_P(TorchVerdicts, AreNoneOfARankThatIsSlowWhichIsToldOnce) {
  Subprocess job = StartOne("slow", {"--max_restarts=1"});
  EXPECT_TRUE(job.WaitForOutput("is slow, not hung", kPatience));
  WriteFile(Out("seen"), "");
  const SubprocessResult result = job.Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(Count(result.err, "is slow, not hung"), 1u);
  EXPECT_THAT(result.err, AllOf(HasSubstr(absl::StrCat(Odd(), " is slow, not hung: it comes ")),
                                Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
}

// Their pauses are computed, written or short; the one that is neither has one notice and one end.
TEST_P(TorchVerdicts, AreNoneOfProgramsThatOnlyTakeLong) {
  std::vector<std::pair<std::string, Subprocess>> jobs;
  for (const char* how : {"long_pause", "checkpoint", "first_step", "short_pause", "uneven"}) {
    jobs.emplace_back(how, StartOne(how, {"--max_restarts=1"}));
  }
  EXPECT_TRUE(jobs.front().second.WaitForOutput(" has not called all_reduce #6 ", kPatience));
  WriteFile(Out("noticed"), "");
  EXPECT_TRUE(jobs.front().second.WaitForOutput("it goes on: ", kPatience));
  WriteFile(Out("seen_going_on"), "");
  for (auto& [how, job] : jobs) {
    const SubprocessResult result = job.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0)) << how;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1")),
                                  Not(HasSubstr("slow, not hung"))))
        << how;
    const bool is_noticed = how == "long_pause";
    EXPECT_EQ(Count(result.err, " has not called all_reduce #6 "), is_noticed ? 2u : 0u)
        << how << ": a notice, and that it goes on\n"
        << result.err;
    EXPECT_EQ(Count(result.err, "it goes on: "), is_noticed ? 1u : 0u) << how << "\n" << result.err;
  }
}

// Nobody waits for another, so that there is nobody at fault: it is told once, and that it is over.
TEST_P(TorchVerdicts, AreNoneWhereAllRanksSleep) {
  Subprocess job = StartOne("quiet", {"--max_restarts=1"});
  EXPECT_TRUE(job.WaitForOutput("have used almost no processor time", kPatience));
  WriteFile(Out("seen"), "");
  const SubprocessResult result = job.Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(Count(result.err, "almost no processor time"), 1u) << result.err;
  EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
}

// The file is read in the rank itself, and in a process that loads its data.
TEST_P(TorchVerdicts, NameTheFileThatDoesNotCome) {
  for (const char* how : {"data", "loader"}) {
    HungFileSystem hung(absl::StrCat(directory(), "/", how), "data", "1",
                        HungFileSystem::Pages::kUsed);
    if (!hung.mounted()) GTEST_SKIP() << hung.why_not();
    Subprocess job = StartOne(how, {"--max_restarts=1"}, {{"DATA", hung.file()}});
    EXPECT_TRUE(job.WaitForOutput(absl::StrCat(" of ", hung.file(), " on "), kPatience)) << how;
    hung.AnswerAgain();
    const SubprocessResult result = job.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0)) << how;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(absl::StrCat(Odd(), " has not called all_reduce #6 ")),
                      HasSubstr(absl::StrCat("; ", Odd(), " in ")), Not(HasSubstr("hang:"))))
        << how;
  }
}

class TorchVerdictsOverNodes : public TorchJobs {
 protected:
  static constexpr Shape kTwo = {.num_nodes = 2, .num_local = 1};
  TorchVerdictsOverNodes() : TorchJobs("torch_verdicts.py") {}
};

TEST_F(TorchVerdictsOverNodes, SayOnEveryConsoleWhichRankIsSlow) {
  std::vector<Subprocess> nodes = StartAgents("slow", kTwo, {});
  for (Subprocess& node : nodes) EXPECT_TRUE(node.WaitForOutput("is slow, not hung", kPatience));
  WriteFile(Out("seen"), "");
  for (Subprocess& node : nodes) {
    const SubprocessResult result = node.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_EQ(Count(result.err, "rank 1 is slow, not hung"), 1u) << result.err;
  }
}

TEST_F(TorchVerdictsOverNodes, SayOnEveryConsoleWhoHasGoneOnWithoutAReceive) {
  ExpectSaid({{"receive",
               "hang: rank 1 has gone on to all_reduce #6 (group default_pg, 4096 bytes f32) "
               "without the recv for which rank 0 waits in send to rank 1 (group default_pg); "
               "rank 0 waits"}},
             kTwo, {"--hang_timeout=15"});
}

}  // namespace
}  // namespace muster::testing
