#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "rendezvous/core/round_state.h"
#include "tests/support/files.h"

namespace muster::rendezvous {
namespace {

TEST(JobPhaseTable, HoldsExactlyTheTransitionsOfTheHeader) {
  EXPECT_EQ(PhaseTable(),
            "forming -> running\n"
            "forming -> ending\n"
            "forming -> ended\n"
            "running -> forming\n"
            "running -> ending\n"
            "running -> ended\n"
            "ending -> ended\n");
}

TEST(JobPhaseTable, LetsNoPhaseFollowTheEnd) {
  for (const JobPhase phase : kJobPhases) EXPECT_FALSE(IsAllowed(JobPhase::kEnded, phase));
}

TEST(JobPhaseTable, LetsNoRoundFormOnceTheJobIsEnding) {
  EXPECT_FALSE(IsAllowed(JobPhase::kEnding, JobPhase::kForming));
  EXPECT_FALSE(IsAllowed(JobPhase::kEnding, JobPhase::kRunning));
}

// The first three words of every line of `text` that reads "phase -> phase …".
std::set<std::string> Transitions(std::istream& text) {
  std::set<std::string> found;
  for (std::string line; std::getline(text, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 3 && words[1] == "->")
      found.insert(absl::StrCat(words[0], " -> ", words[2]));
  }
  return found;
}

TEST(JobPhaseTable, IsTheOneInTheGuide) {
  std::ifstream guide(absl::StrCat(testing::kSourceDirectory, "/deploy/docs/architecture.md"));
  ASSERT_TRUE(guide.is_open());
  std::istringstream table(PhaseTable());
  EXPECT_EQ(Transitions(guide), Transitions(table));
}

}  // namespace
}  // namespace muster::rendezvous
