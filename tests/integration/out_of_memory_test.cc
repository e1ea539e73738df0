// A worker that the kernel kills for want of memory: a real control group with a real limit, where
// we may make one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A fresh memory cgroup (v1) of 512 MB (room for a sanitized launcher), removed at the end; empty
// path if it could not be made.
class MemoryLimit {
 public:
  MemoryLimit() {
    const std::string path = absl::StrCat("/sys/fs/cgroup/memory/muster_test_", getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(path, error) || error) return;
    path_ = path;
    std::ofstream(path_ + "/memory.limit_in_bytes") << 512 * 1000 * 1000;
  }
  ~MemoryLimit() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr char kTakesAllMemory[] =
    "memory = bytearray(1200 * 1000 * 1000)\n"
    "for i in range(0, len(memory), 4096): memory[i] = 1\n";

class OutOfMemory : public JobTest {
 protected:
  // The launcher moves into the group before it starts, so that its workers are counted there.
  SubprocessResult RunIn(const MemoryLimit& limit, const std::string& program) const {
    return StartProgram({"/bin/sh", "-c",
                         absl::StrCat("echo $$ > ", limit.path(), "/cgroup.procs && exec ",
                                      MusterBinary(), " --nproc_per_node=2 ", program)})
        .Wait();
  }
};

TEST_F(OutOfMemory, IsNamedAsTheProbableCauseWhenTheKernelsCounterMoved) {
  const MemoryLimit limit;
  if (limit.path().empty()) GTEST_SKIP() << "no memory cgroup (v1) can be made here";
  const std::string program = PythonScript("memory.py", kTakesAllMemory);
  const SubprocessResult result =
      RunIn(limit, ShellScript("train.sh", absl::StrCat("[ $RANK = 1 ] && exec python3 ", program,
                                                        "\nexec sleep 1000")));
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, HasSubstr("out-of-memory killer"));
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
}

// A loader of data dies so in a process of its own, and its rank says nothing of memory.
TEST_F(OutOfMemory, IsNamedAsTheProbableCauseWhereItIsAHelperThatDied) {
  const MemoryLimit limit;
  if (limit.path().empty()) GTEST_SKIP() << "no memory cgroup (v1) can be made here";
  const std::string program = PythonScript("memory.py", kTakesAllMemory);
  const SubprocessResult result =
      RunIn(limit,
            ShellScript("train.sh", absl::StrCat("[ $RANK = 1 ] || exec sleep 1000\npython3 ",
                                                 program, "\necho DataLoader failed >&2; exit 1")));
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("probably memory: the kernel's out-of-memory killer"));
}

TEST_F(OutOfMemory, IsNotBlamedForAnotherSigkill) {
  const SubprocessResult result =
      Run({"--nproc_per_node=2",
           ShellScript("train.sh", "[ $RANK = 1 ] && kill -9 $$\nexec sleep 1000")});
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, Not(HasSubstr("out-of-memory")));
}

}  // namespace
}  // namespace muster::testing
