// Threads, descriptors and memory that are not to be had: a job goes on, or ends with a sentence,
// but nothing of ours ends in the middle of a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A fresh control group that allows so many threads; empty path if it cannot be made here.
class ThreadLimit {
 public:
  explicit ThreadLimit(int num_threads) {
    for (const char* root : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      const std::string path = absl::StrCat(root, "/muster_used_up_", getpid());
      if (mkdir(path.c_str(), 0755) != 0) continue;
      std::ofstream limit(path + "/pids.max");
      limit << num_threads << std::flush;
      if (limit.good()) {
        path_ = path;
        return;
      }
      rmdir(path.c_str());
    }
  }
  ~ThreadLimit() {
    if (!path_.empty()) WaitUntil([&] { return rmdir(path_.c_str()) == 0; });
  }
  bool is_made() const { return !path_.empty(); }
  // `argv` as it runs in the group.
  Arguments Within(const Arguments& argv) const {
    return Arguments{"/bin/sh", "-c", "echo $$ > $0/cgroup.procs && exec \"$@\"", path_} + argv;
  }

 private:
  std::string path_;
};

// Rank 1 takes every thread that is left, for longer than the agent's questions are apart.
constexpr char kTakesAllThreads[] = R"(
import os, threading, time
if os.environ["RANK"] == "1":
    end = threading.Event()
    try:
        while True: threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError:
        pass
    open(os.environ["OUT"] + "/taken", "w").close()
    time.sleep(5)
    end.set()
else:
    while not os.path.exists(os.environ["OUT"] + "/taken"): time.sleep(0.05)
    time.sleep(5)
open(os.environ["OUT"] + "/ended" + os.environ["RANK"], "w").close()
)";

class UsedUp : public JobTest {
 protected:
  // Limits it as the shell does: `limit` is "ulimit -n 20".
  SubprocessResult RunAfter(const std::string& limit, const Arguments& arguments) {
    Subprocess job = StartProgram(
        Arguments{"/bin/sh", "-c", limit + " && exec \"$@\"", "sh", MusterBinary()} + arguments);
    return job.Wait(4 * kPatience);
  }
  // It succeeds, or says why not; `result` is of a job that can do either.
  static void ExpectASentence(const SubprocessResult& result, const std::string& limit) {
    EXPECT_TRUE(result.ended) << limit;
    EXPECT_EQ(result.signal, 0) << limit << "\n" << ToString(result);
    EXPECT_THAT(result.err, Not(HasSubstr("terminate called"))) << limit;
    EXPECT_NE(result.exit_code, 128 + SIGABRT) << limit;
    if (result.exit_code == 0) return;
    EXPECT_THAT(result.err, HasSubstr("ulimit")) << limit;
  }
};

TEST_F(UsedUp, ThreadsThatAWorkerTakesEndNoJobOnOneNode) {
  const ThreadLimit limit(80);
  if (!limit.is_made()) GTEST_SKIP() << "no control group for processes can be made here";
  Subprocess job = StartProgram(limit.Within(
      {MusterBinary(), "run", "--nproc_per_node=2", PythonScript("train.py", kTakesAllThreads)}));
  EXPECT_THAT(job.Wait(), ExitsWith(0));
  EXPECT_TRUE(FileExists(Out("ended0")) && FileExists(Out("ended1")));
}

TEST_F(UsedUp, ThreadsThatAWorkerTakesKeepNoNodeOfTwoFromItsEnd) {
  const ThreadLimit limit(140);
  if (!limit.is_made()) GTEST_SKIP() << "no control group for processes can be made here";
  const LoopbackPort port;
  const std::string script = PythonScript("train.py", kTakesAllThreads);
  std::vector<Subprocess> nodes;
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    nodes.push_back(StartProgram(limit.Within(
        {MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=used_up",
         absl::StrCat("--rdzv_endpoint=127.0.0.1:", port.number()),
         absl::StrCat("--local_addr=", address), script})));
  }
  for (Subprocess& node : nodes) EXPECT_THAT(node.Wait(), ExitsWith(0));
  EXPECT_TRUE(FileExists(Out("ended0")) && FileExists(Out("ended1")));
}

TEST_F(UsedUp, DescriptorsEndALaunchWithASentence) {
  const std::string script = ShellScript("train.sh", "exit 0");
  for (const int limit : {8, 12, 16, 20, 24, 28, 32, 40}) {
    const std::string shell = absl::StrCat("ulimit -n ", limit);
    ExpectASentence(RunAfter(shell, {"run", "--nproc_per_node=2", script}), shell);
  }
}

TEST_F(UsedUp, DescriptorsForAThousandWorkersAreRefusedInOneSentence) {
  const SubprocessResult result = RunAfter(
      "ulimit -n 1024", {"run", "--nproc_per_node=1000", ShellScript("train.sh", "exit 0")});
  EXPECT_NE(result.exit_code, 0);
  ExpectASentence(result, "ulimit -n 1024");
  EXPECT_THAT(result.err, HasSubstr("1000 workers need 3024 open files"));
}

TEST_F(UsedUp, MemoryEndsALaunchWithASentence) {
  const std::string script = ShellScript("train.sh", "exit 0");
  for (const int megabytes : {60, 80, 100, 150, 200, 300, 500}) {
    const std::string shell = absl::StrCat("ulimit -v ", megabytes * 1024);
    const SubprocessResult result = RunAfter(shell, {"run", "--nproc_per_node=2", script});
    // The system's loader says it in words of its own where the program does not fit.
    if (result.err.find("error while loading shared libraries") != std::string::npos) continue;
    ExpectASentence(result, shell);
  }
}

// The agent gets no more memory than it has once its workers run, and one of them writes a lot.
TEST_F(UsedUp, MemoryWhileWorkersRunEndsTheJobWithASentence) {
  const std::string script =
      ShellScript("train.sh",
                  "touch $OUT/up.$RANK\nwhile ! [ -e $OUT/go ]; do sleep 0.1; done\n"
                  "head -c 30000000 /dev/zero | tr '\\0' x\nexec sleep 1000");
  Subprocess job = Start({"run", "--nproc_per_node=2", script});
  for (const char* up : {"up.0", "up.1"}) ASSERT_TRUE(WaitForOut(up));
  int64_t pages = 0;
  std::ifstream(absl::StrCat("/proc/", job.pid(), "/statm")) >> pages;
  const rlim_t bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + 200'000;
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  ASSERT_EQ(prlimit(job.pid(), RLIMIT_AS, &limit, nullptr), 0);
  WriteFile(Out("go"), "");
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(1));
  ExpectASentence(result, "ulimit -v");
}

TEST_F(UsedUp, ProcessesThatAUserMayNotStartEndALaunchWithASentence) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a user of its own";
  // The limit does not hold for root.
  for (const int limit : {1, 2, 3, 5, 8}) {
    Subprocess job = StartProgram(
        {"/usr/bin/prlimit", absl::StrCat("--nproc=", limit), "/usr/bin/setpriv", "--reuid=54322",
         "--clear-groups", MusterBinary(), "run", "--no_python", "/bin/true"},
        {{"HOME", "/tmp"}, {"TMPDIR", "/tmp"}});
    ExpectASentence(job.Wait(), absl::StrCat("ulimit -u ", limit));
  }
}

TEST_F(UsedUp, FilesWithoutAnEndAreNotReadToTheirEnd) {
  for (const char* option : {"--config_file=/dev/zero", "--hostfile=/dev/zero"}) {
    const SubprocessResult result =
        RunAfter("ulimit -v 500000", {"run", option, ShellScript("train.sh", "exit 0")});
    EXPECT_THAT(result, ExitsWith(2)) << option;
    EXPECT_THAT(result.err, HasSubstr("is longer than 4 MiB")) << option;
  }
}

}  // namespace
}  // namespace muster::testing
