// A real mpirun (Open MPI) starts real agents, with nothing configured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMpirun[] = "/usr/bin/mpirun";

class MpirunTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (access(kMpirun, X_OK) != 0) GTEST_SKIP() << kMpirun << " is not installed";
  }

  SubprocessResult Mpirun(int tasks, const Arguments& job) const {
    return StartProgram(
               Arguments{kMpirun, "--oversubscribe", "-np", absl::StrCat(tasks), MusterBinary()} +
                   job,
               {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}})
        .Wait();
  }
};

// mpirun gives its tasks a pseudo terminal that nobody sits at.
TEST_F(MpirunTest, LinesReachMpirunWholeAndUndrawn) {
  const SubprocessResult result = Mpirun(
      3, {ShellScript("draw",
                      "printf \"half of $RANK\"; sleep 1.5; printf '\\rdone by %s\\n' $RANK")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << result.out;
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("done by ", rank, "\n"))) << result.out;
  }
}

TEST_F(MpirunTest, TasksOfOneNodeBecomeOneJob) {
  const SubprocessResult result =
      Mpirun(3, {ShellScript("tell", "echo $RANK of $WORLD_SIZE > \"$OUT/worker.$LOCAL_RANK\"")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 3\n");
  EXPECT_EQ(ReadOut("worker.1"), "1 of 3\n");
  EXPECT_EQ(ReadOut("worker.2"), "2 of 3\n");
  EXPECT_THAT(result.err, HasSubstr("nproc_per_node=3 (OMPI_COMM_WORLD_LOCAL_SIZE)"));
}

TEST_F(MpirunTest, TheWorkersCodeIsMpiruns) {
  const SubprocessResult result = Mpirun(2, {ShellScript("fail", "exit $((RANK == 1 ? 7 : 0))")});
  EXPECT_THAT(result, ExitsWith(7));
}

TEST_F(MpirunTest, EachTaskIsAJobOfItsOwnWhereThatIsAskedFor) {
  const SubprocessResult result = Mpirun(
      2, {"--standalone", ShellScript("tell", "echo $RANK of $WORLD_SIZE >> \"$OUT/worker\"")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(ReadOut("worker"), "0 of 1\n0 of 1\n");
  EXPECT_THAT(result.err, HasSubstr("each of the 2 processes that Open MPI has started"));
}

}  // namespace
}  // namespace muster::testing
