// deploy/python/muster: what launches by PyTorch's torchrun launches by us. Where PyTorch is
// needed, the environment that `deploy/dev deps --peers` makes; skipped where it is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kPythonFolder = absl::StrCat(kSourceDirectory, "/deploy/python");
constexpr char kTrain[] =
    "import os, sys\n"
    "print('rank', os.environ['RANK'], 'round', os.environ.get('MUSTER_ROUND'), sys.argv[1:])\n"
    "sys.exit('--fail' in sys.argv and 7)\n";

class PythonLaunch : public JobTest {
 protected:
  Environment WithFolder(const std::string& folder) const {
    return {{"PYTHONPATH", absl::StrCat(kPythonFolder, folder)},
            {"MUSTER_BINARY", MusterBinary()},
            {"PYTHONDONTWRITEBYTECODE", "1"}};
  }
  // Runs the Python of PyTorch's environment, without a change to the program that launches.
  SubprocessResult Preloaded(const Arguments& arguments) const {
    return StartProgram(Arguments{PeerPython()} + arguments, WithFolder("/preload"))
        .Wait(absl::Minutes(2));
  }
};

TEST_F(PythonLaunch, AsAModuleIsMusterRun) {
  const std::string script = PythonScript("train.py", kTrain);
  const Arguments python = {"/usr/bin/env", "python3", "-m", "muster"};
  const SubprocessResult result =
      StartProgram(python + Arguments{"--nproc_per_node=2", script, "x"}, WithFolder("")).Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("rank 0 round 0 ['x']"), HasSubstr("rank 1 round 0 ['x']")));
  EXPECT_THAT(StartProgram(python + Arguments{script, "--fail"}, WithFolder("")).Wait(),
              ExitsWith(7));
}

TEST_F(PythonLaunch, SaysWhereMusterIsNot) {
  const SubprocessResult result =
      StartProgram({"/usr/bin/env", "python3", "-m", "muster", "x.py"},
                   {{"PYTHONPATH", kPythonFolder}, {"PYTHONDONTWRITEBYTECODE", "1"}})
          .Wait();
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("set MUSTER_BINARY"));
}

class PythonLaunchWithTorch : public PythonLaunch {
 protected:
  void SetUp() override {
    PythonLaunch::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }
};

TEST_F(PythonLaunchWithTorch, PreloadedItTakesTheModuleTorchDistributedRun) {
  const std::string script = PythonScript("train.py", kTrain);
  const SubprocessResult result = Preloaded({"-m", "torch.distributed.run", "--nproc_per_node=2",
                                             "--max-restarts", "1", script, "--nnodes", "9"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("rank 1 round 0 ['--nnodes', '9']"));
}

TEST_F(PythonLaunchWithTorch, ImportedItTakesTheFunction) {
  const std::string script = PythonScript("train.py", kTrain);
  const std::string launcher = PythonScript(
      "launch.py", absl::StrCat("import muster\nfrom torch.distributed.run import main\nmain(['",
                                script, "', '--fail'])\n"));
  const SubprocessResult result =
      StartProgram({PeerPython(), launcher}, WithFolder("")).Wait(absl::Minutes(2));
  EXPECT_THAT(result, ExitsWith(7));
  EXPECT_THAT(result.out, HasSubstr("rank 0 round 0"));
}

TEST_F(PythonLaunchWithTorch, PassesTheLocalRankOnAsTorchDistributedLaunchDoes) {
  const std::string script = PythonScript("train.py", kTrain);
  const SubprocessResult result =
      Preloaded({"-m", "torch.distributed.launch", "--nproc_per_node=2", script, "x"});
  EXPECT_THAT(result.out, HasSubstr("rank 1 round 0 ['--local-rank=1', 'x']"));
}

TEST_F(PythonLaunchWithTorch, PreloadedItTakesAccelerate) {
  Subprocess import = StartProgram({PeerPython(), "-c", "import accelerate"});
  if (import.Wait(absl::Minutes(2)).exit_code != 0) {
    GTEST_SKIP() << "accelerate is not installed beside PyTorch: run deploy/dev deps --peers";
  }
  const std::string script = PythonScript("train.py", kTrain);
  const SubprocessResult result = Preloaded({"-m", "accelerate.commands.launch", "--multi_gpu",
                                             "--num_processes=2", "--main_process_port=0", script});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 0 round 0"), HasSubstr("rank 1 round 0")));
}

}  // namespace
}  // namespace muster::testing
