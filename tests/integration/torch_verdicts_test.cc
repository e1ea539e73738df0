// What is said of programs of PyTorch over two, three and four ranks of which the last is at fault, and of
// their healthy twins (programs/torch_verdicts.py). Needs the environment that `deploy/dev deps --peers`
// makes; skipped where it is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Minutes(4);
// At once, since most of their time is waiting; more would import PyTorch for each other's minutes.
constexpr size_t kJobsAtOnce = 4;

// A program, and how the line begins that is said of it: of two ranks, where nobody can tell which of
// them is right, another.
struct Program {
  const char* how;
  std::string of_two;
  std::string of_more;
};

size_t Count(const std::string& text, const std::string& part) {
  const std::vector<std::string> parts = absl::StrSplit(text, part);
  return parts.size() - 1;
}

class TorchVerdicts : public JobTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  static int size() { return GetParam(); }
  static int odd() { return size() - 1; }
  // "rank 0", "ranks 0-2".
  static std::string Others() {
    return size() == 2 ? "rank 0" : size() == 3 ? "ranks 0 and 1" : "ranks 0-2";
  }
  static std::string Odd() { return absl::StrCat("rank ", odd()); }

  Subprocess StartJob(const std::string& how, const Arguments& more) const {
    return Start(
        Arguments{"run", absl::StrCat("--nproc_per_node=", size()), "--rdzv_id=" + how,
                  "--log_dir=" + Out("logs")} +
            more +
            Arguments{MUSTER_SOURCE_DIRECTORY "/tests/integration/programs/torch_verdicts.py", how},
        {{"PYTHON_EXEC", PeerPython()}, {"PYTHONDONTWRITEBYTECODE", "1"}, {"OUT", Out("")}});
  }

  // Each ends by the verdict about it, which `begins` the line.
  void ExpectVerdicts(const std::vector<Program>& programs) const {
    for (size_t begin = 0; begin < programs.size(); begin += kJobsAtOnce) {
      std::vector<std::pair<const Program*, Subprocess>> jobs;
      for (size_t i = begin; i < std::min(begin + kJobsAtOnce, programs.size()); ++i) {
        jobs.emplace_back(&programs[i], StartJob(programs[i].how, {"--hang_timeout=15"}));
      }
      for (auto& [program, job] : jobs) {
        EXPECT_TRUE(job.WaitForOutput("hang: ", kPatience)) << program->how;
        job.Signal(SIGTERM);
        const std::string said = job.Wait(kPatience).err;
        const std::string begins = size() == 2 ? program->of_two : program->of_more;
        EXPECT_THAT(said, HasSubstr(absl::StrCat("hang: ", begins))) << program->how;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, TorchVerdicts, ::testing::Values(2, 3, 4));

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

}  // namespace
}  // namespace muster::testing
