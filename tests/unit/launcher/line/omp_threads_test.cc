#include "launcher/line/omp_threads.h"

#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using Kind = OmpThreads::Kind;

int Threads(Kind kind, int num_workers, const NodeCpus& cpus, bool is_inherited = false) {
  return DecideOmpThreads({.kind = kind}, num_workers, cpus, is_inherited).threads;
}

// Source: torch 2.15, torch/distributed/run.py: 1 where there are several and nothing is set.
TEST(DecideOmpThreads, GivesOneToEachOfSeveralWorkersAndSaysWhatWouldFit) {
  const ThreadDecision decision = DecideOmpThreads({}, 4, {.num_cpus = 32}, false);
  EXPECT_EQ(decision.threads, 1);
  EXPECT_EQ(decision.note,
            "each of the 4 workers gets OMP_NUM_THREADS=1; the CPUs of this node would allow 8 "
            "(--omp_threads=auto)");
  EXPECT_EQ(DecideOmpThreads({}, 4, {.num_cpus = 7}, false).note, "");
}

TEST(DecideOmpThreads, LeavesASingleWorkerWhatItsLibrariesChoose) {
  EXPECT_EQ(Threads(Kind::kUsual, 1, {.num_cpus = 32}), 0);
}

TEST(DecideOmpThreads, LeavesWhatTheUserHasSet) {
  EXPECT_EQ(Threads(Kind::kUsual, 4, {.num_cpus = 32}, true), 0);
  EXPECT_EQ(Threads(Kind::kUsual, 4, {.num_cpus = 32, .are_counted = true}, true), 0);
}

TEST(DecideOmpThreads, SharesTheCpusThatASchedulerHasCounted) {
  EXPECT_EQ(Threads(Kind::kUsual, 4, {.num_cpus = 16, .are_counted = true}), 4);
  EXPECT_EQ(Threads(Kind::kUsual, 1, {.num_cpus = 16, .are_counted = true}), 16);
  EXPECT_EQ(Threads(Kind::kUsual, 4, {.num_cpus = 2, .are_counted = true}), 1);
}

TEST(DecideOmpThreads, SharesTheNodesCpusWhereThatIsAskedFor) {
  EXPECT_EQ(Threads(Kind::kShare, 4, {.num_cpus = 32}, true), 8);
  EXPECT_EQ(Threads(Kind::kShare, 1, {.num_cpus = 32}), 32);
  EXPECT_EQ(Threads(Kind::kShare, 64, {.num_cpus = 32}), 1);
}

TEST(DecideOmpThreads, TakesANumberAndLeavesItAloneWhereThatIsAskedFor) {
  EXPECT_EQ(DecideOmpThreads({.kind = Kind::kCount, .count = 3}, 4, {.num_cpus = 32}, true).threads,
            3);
  EXPECT_EQ(Threads(Kind::kUntouched, 4, {.num_cpus = 32}), 0);
}

}  // namespace
}  // namespace muster::launcher
