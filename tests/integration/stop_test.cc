// Interrupts, the stop ladder, and what is left afterwards: nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Notes the signals it gets and ends `$1` signals later (0: never).
constexpr char kTakesNote[] = R"(
import os, signal, sys, time
left = int(sys.argv[1])
noted = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
def note(number, frame):
    global left
    # One after the other: the test sends the next as soon as the file is there.
    signal.pthread_sigmask(signal.SIG_BLOCK, noted)
    with open(os.environ['OUT'] + '/signals' + os.environ['RANK'], 'a') as file:
        file.write(signal.Signals(number).name + '\n')
    left -= 1
    if left == 0: sys.exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, noted)
for s in noted: signal.signal(s, note)
open(os.environ['OUT'] + '/ready' + os.environ['RANK'], 'w').close()
# A signal that comes just before pause() would be noted by the next one alone.
while True: time.sleep(0.1)
)";

class Stop : public JobTest {
 protected:
  // Starts two workers and waits until both have their handlers.
  Subprocess StartTakingNote(const std::string& end_after, const Arguments& options = {},
                             const Environment& changes = {}) {
    const std::string script = PythonScript("train.py", kTakesNote);
    Subprocess job = Start(
        Arguments{"run", "--nproc_per_node=2"} + options + Arguments{script, end_after}, changes);
    EXPECT_TRUE(WaitForOut("ready0") && WaitForOut("ready1"));
    return job;
  }
  void ExpectSignals(const std::string& signals) {
    EXPECT_EQ(ReadOut("signals0"), signals);
    EXPECT_EQ(ReadOut("signals1"), signals);
  }
};

TEST_F(Stop, PassesAnInterruptOnAndWaitsForTheWorkers) {
  Subprocess job = StartTakingNote("1");
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
  ExpectSignals("SIGINT\n");
}

TEST_F(Stop, PassesSigtermOnAndEndsWith143) {
  Subprocess job = StartTakingNote("1");
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  ExpectSignals("SIGTERM\n");
}

// Its handler writes a checkpoint, for which the process that loads its data is needed.
TEST_F(Stop, LeavesARankThatHandlesTheSignalWhatItHasStarted) {
  const std::string script = PythonScript("train.py", R"(
import os, signal, sys, time
to_loader, from_rank = os.pipe()[::-1]
from_loader, to_rank = os.pipe()
if os.fork() == 0:
    os.close(to_loader)
    while os.read(from_rank, 1): os.write(to_rank, b'x')
    sys.exit(0)
os.close(to_rank)
def save(number, frame):
    os.write(to_loader, b'?')
    batch = os.read(from_loader, 1)
    with open(os.environ['OUT'] + '/saved' + str(number), 'w') as file: file.write(str(batch))
    if number == signal.SIGTERM: sys.exit(0)
for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, save)
open(os.environ['OUT'] + '/ready', 'w').close()
while True: time.sleep(0.05)
)");
  Subprocess job = Start({"run", "--shutdown_timeout=600", script}, {{"SLURM_JOB_ID", "1"}});
  ASSERT_TRUE(WaitForOut("ready"));
  job.Signal(SIGUSR1);
  ASSERT_TRUE(WaitForOut("saved10"));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  EXPECT_EQ(ReadOut("saved10"), "b'x'");
  EXPECT_EQ(ReadOut("saved15"), "b'x'");
}

// A trap runs once the command before it has ended: so that gets the signal at once, too.
TEST_F(Stop, SignalsTheCommandOfAShellThatHasATrap) {
  const std::string script = ShellScript(
      "train.sh", "trap 'touch $OUT/trapped; exit 0' TERM\ntouch $OUT/ready\nsleep 1000");
  Subprocess job = Start({"run", "--shutdown_timeout=600", script});
  ASSERT_TRUE(WaitForOut("ready"));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  EXPECT_TRUE(FileExists(Out("trapped")));
}

TEST_F(Stop, EndsAtOnceOnASecondInterrupt) {
  Subprocess job = StartTakingNote("0", {"--shutdown_timeout=600"});
  job.Signal(SIGINT);
  ASSERT_TRUE(WaitForOut("signals0") && WaitForOut("signals1"));
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
}

TEST_F(Stop, KillsAWorkerThatOutlivesItsGrace) {
  Subprocess job = StartTakingNote("0", {"--shutdown_timeout=1"});
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
}

TEST_F(Stop, KillsAPeerOfAFailedWorkerThatIgnoresSigterm) {
  const std::string script =
      ShellScript("train.sh",
                  "[ $RANK = 0 ] && { while [ ! -e $OUT/ready ]; do sleep 0.05; done; exit 5; }\n"
                  "trap '' TERM\ntouch $OUT/ready\nwhile :; do sleep 0.05; done");
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", "--shutdown_timeout=1", script}), ExitsWith(5));
}

TEST_F(Stop, PassesUserSignalsOnUnderSlurmAndStopsNothing) {
  Subprocess job = StartTakingNote("2", {}, {{"SLURM_JOB_ID", "1"}});
  job.Signal(SIGUSR1);
  ASSERT_TRUE(WaitForOut("signals0") && WaitForOut("signals1"));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  ExpectSignals("SIGUSR1\nSIGTERM\n");
}

TEST_F(Stop, EndsAtAUserSignalThatItIsToHandleThoughTheWorkersSucceed) {
  Subprocess job = StartTakingNote("1", {"--signals_to_handle=SIGTERM,SIGUSR1"});
  job.Signal(SIGUSR1);
  EXPECT_THAT(job.Wait(), ExitsWith(128 + SIGUSR1));
  ExpectSignals("SIGUSR1\n");
}

TEST_F(Stop, LeavesSighupAloneThatItWasStartedIgnoring) {
  SubprocessOptions options =
      OptionsFor({"run", "--nproc_per_node=2", PythonScript("train.py", kTakesNote), "1"});
  options.ignored_signals = {SIGHUP};
  Subprocess job(options);
  ASSERT_TRUE(WaitForOut("ready0") && WaitForOut("ready1"));
  job.Signal(SIGHUP);
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  ExpectSignals("SIGTERM\n");
}

// A shell without job control starts its background processes like this.
TEST_F(Stop, ObeysAnInterruptThatItWasStartedIgnoring) {
  SubprocessOptions options =
      OptionsFor({"run", "--nproc_per_node=2", PythonScript("train.py", kTakesNote), "1"});
  options.ignored_signals = {SIGINT, SIGQUIT};
  Subprocess job(options);
  ASSERT_TRUE(WaitForOut("ready0") && WaitForOut("ready1"));
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
  ExpectSignals("SIGINT\n");
}

TEST_F(Stop, TellsTheWorkersWhichSignalsEndTheJob) {
  const std::string script = ShellScript("train.sh", "echo $TORCHELASTIC_SIGNALS_TO_HANDLE");
  EXPECT_EQ(Run({"run", script}).out, "SIGTERM,SIGINT,SIGHUP,SIGQUIT\n");
  EXPECT_EQ(Run({"run", "--signals_to_handle=TERM,USR1", script}).out, "SIGTERM,SIGUSR1\n");
}

// Leaves grandchildren in sessions of their own that ignore SIGTERM; the worker itself goes on as
// `$1` says.
constexpr char kForksDaemons[] = R"(
for i in 1 2; do
  setsid sh -c "trap '' TERM INT HUP; touch $OUT/grandchild$RANK.$i
                while :; do sleep 1; done" > /dev/null 2>&1 &
done
while [ ! -e $OUT/grandchild$RANK.1 ] || [ ! -e $OUT/grandchild$RANK.2 ]; do sleep 0.02; done
echo $MUSTER_AGENT_SOCKET > $OUT/socket
touch $OUT/ready$RANK
case $1 in
  ends) exit 0 ;;
  fails) exit 4 ;;
  stays) exec sleep 1000 ;;
esac)";

class Leftovers : public JobTest {
 protected:
  Subprocess StartDaemons(const std::string& mode) {
    return Start({"run", "--nproc_per_node=2", "--shutdown_timeout=1",
                  ShellScript("train.sh", kForksDaemons), mode});
  }
  void WaitForWorkers() { ASSERT_TRUE(WaitForOut("ready0") && WaitForOut("ready1")); }
  pid_t GuardianOf(const Subprocess& job) {
    for (pid_t child : ChildrenOf(job.pid())) {
      if (NameOf(child) == "muster-guardian") return child;
    }
    ADD_FAILURE() << "no child named muster-guardian among:\n" << Describe(ChildrenOf(job.pid()));
    return -1;
  }
  void ExpectNothingIsLeft() {
    EXPECT_TRUE(NothingIsLeft()) << Describe(ProcessesWith(mark()));
    std::string socket = ReadOut("socket");
    if (socket.size() < 2) return;
    socket.pop_back();
    EXPECT_TRUE(WaitUntil([&] { return !FileExists(socket); })) << socket;
  }
};

TEST_F(Leftovers, AreNoneAfterSuccess) {
  EXPECT_THAT(StartDaemons("ends").Wait(), ExitsWith(0));
  ExpectNothingIsLeft();
}

TEST_F(Leftovers, OfWorkersThatSucceededMayEndByThemselves) {
  const SubprocessResult result = Run(
      {"run", ShellScript("train.sh",
                          "(sleep 2.5; echo uploaded > $OUT/upload) > /dev/null 2>&1 &\nexit 0")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(ReadOut("upload"), "uploaded\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("left running: "), ContainsRegex("\\(pid [0-9]+\\)")));
}

TEST_F(Leftovers, OfWorkersThatSucceededAreNamedWhenTheyAreStopped) {
  const SubprocessResult result = StartDaemons("ends").Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("stopping what the workers left running: "));
}

TEST_F(Leftovers, AreNoneAfterAFailure) {
  EXPECT_THAT(StartDaemons("fails").Wait(), ExitsWith(4));
  ExpectNothingIsLeft();
}

TEST_F(Leftovers, AreNoneAfterAnInterrupt) {
  Subprocess job = StartDaemons("stays");
  WaitForWorkers();
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
  ExpectNothingIsLeft();
}

TEST_F(Leftovers, AreNoneAfterTheAgentWasKilled) {
  Subprocess job = StartDaemons("stays");
  WaitForWorkers();
  job.Signal(SIGKILL);
  EXPECT_EQ(job.Wait().signal, SIGKILL);
  ExpectNothingIsLeft();
}

TEST_F(Leftovers, AreNoneAfterTheGuardianWasKilled) {
  Subprocess job = StartDaemons("stays");
  WaitForWorkers();
  const pid_t guardian = GuardianOf(job);
  ASSERT_GT(guardian, 0);
  kill(guardian, SIGKILL);
  const SubprocessResult result = job.Wait();
  EXPECT_TRUE(result.ended && result.exit_code > 0) << ToString(result);
  ExpectNothingIsLeft();
}

// Has shared memory that is never unlinked, as a worker that is killed in the middle, a child that
// holds the resource tracker's pipe too, and takes no signal that can be ignored.
constexpr char kSharesMemory[] = R"(
import multiprocessing, os, signal, time
from multiprocessing import resource_tracker, shared_memory
for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)
memory = shared_memory.SharedMemory(create=True, size=1 << 20)
tracker = '/proc/%d/cmdline' % resource_tracker._resource_tracker._pid
while 'resource_tracker' not in open(tracker).read(): time.sleep(0.01)  # not in exec any more
multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,)).start()
out, rank = os.environ['OUT'], os.environ['RANK']
with open(out + '/memory' + rank, 'w') as file: file.write('/dev/shm/' + memory.name)
open(out + '/ready' + rank, 'w').close()
while True: time.sleep(1)
)";

class SharedMemory : public Leftovers {
 protected:
  SharedMemory()
      : job_(Start({"run", "--nproc_per_node=2", "--shutdown_timeout=1",
                    PythonScript("train.py", kSharesMemory)})) {
    WaitForWorkers();
    for (const char* file : {"memory0", "memory1"}) {
      memory_.push_back(ReadOut(file));
      EXPECT_TRUE(FileExists(memory_.back())) << memory_.back();
    }
  }
  void ExpectItIsGone() {
    ExpectNothingIsLeft();
    for (const std::string& memory : memory_) EXPECT_FALSE(FileExists(memory)) << memory;
  }
  Subprocess job_;
  std::vector<std::string> memory_;
};

TEST_F(SharedMemory, OfWorkersThatOutlivedTheirGraceIsGone) {
  job_.Signal(SIGTERM);
  EXPECT_THAT(job_.Wait(), ExitsWith(143));
  ExpectItIsGone();
}

TEST_F(SharedMemory, OfWorkersThatASecondInterruptHasKilledIsGone) {
  job_.Signal(SIGINT);
  job_.Signal(SIGINT);
  EXPECT_THAT(job_.Wait(), ExitsWith(130));
  ExpectItIsGone();
}

TEST_F(SharedMemory, IsGoneAfterTheAgentWasKilled) {
  job_.Signal(SIGKILL);
  EXPECT_EQ(job_.Wait().signal, SIGKILL);
  ExpectItIsGone();
}

TEST_F(SharedMemory, IsGoneAfterTheGuardianWasKilled) {
  kill(GuardianOf(job_), SIGKILL);
  EXPECT_TRUE(job_.Wait().ended);
  ExpectItIsGone();
}

// The job is in a control group that is marked as delegated to the processes in it.
class LeftoversInAGroup : public Leftovers {
 protected:
  void SetUp() override {
    Leftovers::SetUp();
    for (const char* root : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}) {
      const std::string path = absl::StrCat(root, "/muster_leftovers_", getpid());
      if (mkdir(path.c_str(), 0755) != 0) continue;
      const bool can_kill = FileExists(path + "/cgroup.kill");
      if (can_kill && setxattr(path.c_str(), "user.delegate", "1", 1, 0) == 0) {
        group_ = path;
        return;
      }
      rmdir(path.c_str());
    }
    GTEST_SKIP() << "no control group (v2) can be made here";
  }
  void TearDown() override {
    Leftovers::TearDown();
    if (group_.empty()) return;
    EXPECT_TRUE(WaitUntil([&] { return rmdir(group_.c_str()) == 0; })) << group_;
  }
  Subprocess StartDaemonsInGroup(const std::string& mode) {
    return StartProgram({"/bin/sh", "-c", "echo $$ > $0/cgroup.procs && exec \"$@\"", group_,
                         MusterBinary(), "run", "--nproc_per_node=2", "--shutdown_timeout=1",
                         ShellScript("train.sh", kForksDaemons), mode});
  }

 private:
  std::string group_;
};

TEST_F(LeftoversInAGroup, AreNoneAfterAgentAndGuardianWereKilled) {
  Subprocess job = StartDaemonsInGroup("stays");
  WaitForWorkers();
  const pid_t guardian = GuardianOf(job);
  ASSERT_GT(guardian, 0);
  job.Signal(SIGSTOP);  // so that it does not see the other's end
  kill(guardian, SIGKILL);
  job.Signal(SIGKILL);
  EXPECT_EQ(job.Wait().signal, SIGKILL);
  EXPECT_TRUE(NothingIsLeft()) << Describe(ProcessesWith(mark()));
}

TEST_F(LeftoversInAGroup, AreNoneAfterAFailure) {
  EXPECT_THAT(StartDaemonsInGroup("fails").Wait(), ExitsWith(4));
  ExpectNothingIsLeft();
}

}  // namespace
}  // namespace muster::testing
