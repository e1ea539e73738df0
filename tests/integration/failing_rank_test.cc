// One rank of a real job fails; the others learn of it within seconds, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FailingRank : public JobTest {
 protected:
  // The lines of the ranks that were told, with the deadline of the whole job.
  std::vector<std::string> Told(const std::string& how, int expected_exit_code) {
    // A short grace: rank 1 may never end by itself, and the others ignore SIGTERM.
    const SubprocessResult result =
        Start({"run", "--nproc_per_node=3", "--shutdown_timeout=8", Built("failing_rank"), how})
            .Wait(absl::Seconds(45));
    EXPECT_THAT(result, ExitsWith(expected_exit_code));
    std::vector<std::string> told;
    for (absl::string_view line : absl::StrSplit(result.out + result.err, '\n')) {
      // The summary at the end repeats one of them, indented.
      if (absl::StartsWith(line, "told: ")) told.emplace_back(line);
    }
    return told;
  }
};

TEST_F(FailingRank, IsNamedWhenItDies) {
  EXPECT_THAT(Told("dies", 137), AllOf(SizeIs(2), Each(HasSubstr("rank 1"))));
}

// Gloo forgets the message that it was in the middle of when a connection breaks; without a look of
// our own the others would wait for it until the time-out of ten minutes.
TEST_F(FailingRank, IsNamedWhenItDiesInTheMiddleOfAMessage) {
  EXPECT_THAT(Told("midway", 137), AllOf(SizeIs(2), Each(HasSubstr("rank 1"))));
}

TEST_F(FailingRank, IsNamedWhenItNeverArrives) {
  const std::vector<std::string> told = Told("absent", 1);
  EXPECT_THAT(told, AllOf(SizeIs(2), Each(HasSubstr("rank 1"))));
}

TEST_F(FailingRank, IsNamedWhenItStopsCalling) {
  EXPECT_THAT(Told("slow", 1), AllOf(SizeIs(2), Each(HasSubstr("rank 1"))));
}

TEST_F(FailingRank, IsNamedWhenItCallsWithAnotherSize) {
  EXPECT_THAT(Told("size", 1),
              AllOf(SizeIs(3), Each(HasSubstr("rank 1")), Each(HasSubstr("262148 bytes"))));
}

TEST_F(FailingRank, IsNamedWhenItCallsWithAnotherType) {
  EXPECT_THAT(Told("type", 1), AllOf(SizeIs(3), Each(HasSubstr("rank 1")), Each(HasSubstr("f64"))));
}

}  // namespace
}  // namespace muster::testing
