// The doors of InstructLab's and DeepSpeed's users on one node. Accelerate's is accelerate_test's,
// host files are hosts_test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kInstructLab =
    absl::StrCat("--ilab=", kSourceDirectory, "/tests/unit/launcher/configs/instructlab.yaml");

class FrontDoorsTest : public JobTest {
 protected:
  // A worker that notes what DeepSpeed's users find.
  std::string Teller() const {
    return ShellScript("tell",
                       "echo \"$LOCAL_RANK of $LOCAL_SIZE, $CROSS_RANK of $CROSS_SIZE,"
                       " gpus $CUDA_VISIBLE_DEVICES, $FROM_FILE: $*\" > \"$OUT/worker.$RANK\"");
  }
};

TEST_F(FrontDoorsTest, AFileOfInstructLabsStartsItsWorkersOfTheScript) {
  const SubprocessResult result = Run({kInstructLab, Teller(), "--lr", "1"});
  EXPECT_THAT(result, ExitsWith(0));
  for (const char* rank : {"0", "1", "2", "3"}) {
    EXPECT_EQ(ReadOut(absl::StrCat("worker.", rank)),
              absl::StrCat(rank, " of ,  of , gpus , : --lr 1\n"));
  }
  EXPECT_THAT(result.err, HasSubstr("that is for the program to read"));
}

TEST_F(FrontDoorsTest, AFileOfInstructLabsWithoutAScriptStartsNothingAndSaysSo) {
  const SubprocessResult result = Run({kInstructLab});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, AllOf(HasSubstr("no script was given"), HasSubstr("SCRIPT")));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(FrontDoorsTest, AnOptionOfAcceleratesFileIsRefusedWithTheFileAndItsLine) {
  const std::string file = directory() + "/a.yaml";
  WriteFile(file,
            "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2\n"
            "main_process_ip: n0\nrdzv_backend: raft\n");
  const std::string said = absl::StrCat("--config_file=", file, ": line 5: rdzv_backend");
  const SubprocessResult peer = Run({"accelerate", "launch", "--config_file=" + file, "t.py"});
  EXPECT_THAT(peer, ExitsWith(2));
  EXPECT_THAT(peer.err, AllOf(HasSubstr("--rdzv_backend=raft: "),
                              HasSubstr(absl::StrCat("(from ", said, ")"))));
  const SubprocessResult run = Run({"--config_file=" + file, "t.py"});
  EXPECT_THAT(run, ExitsWith(2));
  EXPECT_THAT(run.err, HasSubstr(absl::StrCat(said, "=raft: ")));
}

TEST_F(FrontDoorsTest, DeepSpeedsOptionsAloneStartWorkersOfThisNode) {
  WriteFile(environment().at("HOME") + "/.deepspeed_env", "FROM_FILE=a b\n");
  EXPECT_THAT(Run({"--num_gpus=2", Teller(), "x"}, {{"CUDA_VISIBLE_DEVICES", "4,5,7"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 2, 0 of 1, gpus 4,5, a b: --local_rank=0 x\n");
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus 4,5, a b: --local_rank=1 x\n");
  EXPECT_THAT(Run({"--include", "localhost:0,2", "--no_local_rank", Teller(), "y"},
                  {{"CUDA_VISIBLE_DEVICES", "4,5,7"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus 4,7, a b: y\n");
  EXPECT_THAT(Run({"--exclude=localhost:0", Teller()}, {{"CUDA_VISIBLE_DEVICES", "4,5"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 1, 0 of 1, gpus 5, a b: --local_rank=0\n");
  EXPECT_THAT(Run({"--include=localhost:3", Teller()}, {{"CUDA_VISIBLE_DEVICES", "4,5"}}),
              ExitsWith(2));
}

TEST_F(FrontDoorsTest, ALinkOfAnotherLaunchersNameOrItsNameAsFirstWordTakesItsLine) {
  const std::string link = directory() + "/deepspeed";
  std::filesystem::create_symlink(MusterBinary(), link);
  EXPECT_THAT(StartProgram({link, "--num_gpus=2", Teller(), "x"}).Wait(), ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus , : --local_rank=1 x\n");
  EXPECT_THAT(Run({"deepspeed", "--num_gpus=1", "--no_local_rank", Teller(), "y"}), ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 1, 0 of 1, gpus , : y\n");
  const std::string launch = directory() + "/accelerate-launch";
  std::filesystem::create_symlink(MusterBinary(), launch);
  EXPECT_THAT(
      StartProgram({launch, "--multi_gpu", "--num_processes=2", "--no_python", Teller(), "z"})
          .Wait(),
      ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of ,  of , gpus , : z\n");
  EXPECT_THAT(Run({"torchrun", "--nproc_per_node=1", Teller(), "t"}), ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of ,  of , gpus , : t\n");
}

// The file lies where DeepSpeed itself has it, and holds the number of the launcher's process.
TEST_F(FrontDoorsTest, SavesItsPidWhileDeepSpeedsJobRuns) {
  const std::string script =
      ShellScript("wait", "touch \"$OUT/up\"; while ! [ -e \"$OUT/go\" ]; do sleep 0.05; done");
  Subprocess job = Start({"deepspeed", "--num_gpus=1", "--save_pid", script});
  ASSERT_TRUE(WaitForOut("up"));
  const std::string path = absl::StrCat("/tmp/", job.pid(), ".deepspeed");
  EXPECT_EQ(ReadFile(path), absl::StrCat(job.pid()));
  WriteFile(Out("go"), "");
  EXPECT_THAT(job.Wait(), ExitsWith(0));
  EXPECT_FALSE(FileExists(path));
}

TEST_F(FrontDoorsTest, AModuleOfPythonsThatLaunchesTakesItsLine) {
  const std::string script =
      PythonScript("t.py", "import os, sys; print(sys.argv[1:], os.environ['RANK'], flush=True)\n");
  const SubprocessResult result =
      Run({"python3", "-m", "torch.distributed.run", "--nproc_per_node=2", script, "a"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("['a'] 0\n"), HasSubstr("['a'] 1\n")));
}

TEST_F(FrontDoorsTest, MakesLinksByTheNamesOfOtherLaunchers) {
  const std::string folder = directory() + "/links/of/ours";
  for (int again = 0; again < 2; ++again) EXPECT_THAT(Run({"link", folder}), ExitsWith(0));
  EXPECT_THAT(StartProgram({folder + "/deepspeed", "--num_gpus=1", Teller(), "x"}).Wait(),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.0"), "0 of 1, 0 of 1, gpus , : --local_rank=0 x\n");
  EXPECT_THAT(StartProgram({folder + "/accelerate", "launch", "--multi_gpu", "--num_processes=2",
                            "--no_python", Teller(), "y"})
                  .Wait(),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of ,  of , gpus , : y\n");

  const std::string other = directory() + "/bin";
  std::filesystem::create_directories(other);
  WriteFile(other + "/deepspeed", "somebody else's");
  const SubprocessResult refused = Run({"link", other});
  EXPECT_THAT(refused, ExitsWith(2));
  EXPECT_THAT(refused.err, HasSubstr(other + "/deepspeed already exists"));
  EXPECT_EQ(FilesBelow(other), std::vector<std::string>{"deepspeed"});
  for (const Arguments& line : {Arguments{"link"}, Arguments{"link", "a", "b"},
                                Arguments{"link", "--all"}, Arguments{"link", "/proc/none"}}) {
    EXPECT_THAT(Run(line), ExitsWith(2));
  }
}

TEST_F(FrontDoorsTest, WhatIsNotForALauncherGoesToTheRealProgramOrIsRefused) {
  const std::string path = "/usr/bin:/bin";
  const SubprocessResult without = Run({"accelerate", "config"}, {{"PATH", path}});
  EXPECT_THAT(without, ExitsWith(2));
  EXPECT_THAT(without.err, HasSubstr("not on PATH here: install it (pip install accelerate)"));
  std::filesystem::create_directories(directory() + "/ours");
  std::filesystem::create_symlink(MusterBinary(), directory() + "/ours/accelerate");
  ShellScript("accelerate", "echo real: $*; exit 7");
  const SubprocessResult with =
      Run({"accelerate", "config", "update"},
          {{"PATH", absl::StrCat(directory(), "/ours:", directory(), ":", path)}});
  EXPECT_THAT(with, ExitsWith(7));
  EXPECT_EQ(with.out, "real: config update\n");
  const SubprocessResult train =
      Run({"ilab", "model", "train", "--distributed", "--num-gpus", "4"}, {{"PATH", path}});
  EXPECT_THAT(train, ExitsWith(2));
  EXPECT_THAT(train.err,
              HasSubstr("muster run --nproc_per_node=4 -m instructlab.training.main_ds"));
  const SubprocessResult nodes =
      Run({"ilab", "--config", "c.yaml", "model", "train", "--distributed", "--num-gpus=8",
           "--nnodes", "2", "--node-rank=1", "--rdzv-endpoint", "n1:1234"},
          {{"PATH", path}});
  EXPECT_THAT(nodes, ExitsWith(2));
  EXPECT_THAT(nodes.err, AllOf(HasSubstr("muster run --nproc_per_node=8 "), HasSubstr("--nnodes=2"),
                               HasSubstr("--node_rank=1"), HasSubstr("--rdzv_endpoint=n1:1234")));
}

TEST_F(FrontDoorsTest, WorkersFindWhatDeepSpeedGivesThem) {
  // What a machine without GPUs shows of them differs.
  const std::string script = PythonScript("show.py", R"(import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
         "MASTER_ADDR")
with open(os.environ["SHOW"] + os.environ["RANK"], "w") as file:
    print(sys.argv[1:], *(f"{name}={os.environ.get(name)}" for name in names), file=file)
)");
  const Arguments job = {"--num_gpus=2", script, "--lr", "1"};
  const auto shown_by = [&](const std::string& whose) {
    return nlohmann::json{ReadOut(whose + "0"), ReadOut(whose + "1")};
  };
  const nlohmann::json theirs = PeerRecord("deepspeed", "deepspeed").Outcome("", [&] {
    const std::string python = PeerPython();
    const std::string deepspeed = python.substr(0, python.rfind('/') + 1) + "deepspeed";
    const SubprocessResult result =
        StartProgram(Arguments{python, deepspeed} + job, {{"SHOW", Out("theirs.")}})
            .Wait(absl::Minutes(4));
    return HasSucceeded(result) ? shown_by("theirs.") : nlohmann::json();
  });
  EXPECT_THAT(Run(job, {{"SHOW", Out("ours.")}}), ExitsWith(0));
  EXPECT_EQ(shown_by("ours."), theirs);
  EXPECT_THAT(ReadOut("ours.1"), HasSubstr("--local_rank=1"));
}

TEST_F(FrontDoorsTest, DeepSpeedsElasticJobMeetsAtItsMaster) {
  const LoopbackPort port;
  const SubprocessResult result =
      Run({"deepspeed", "--elastic_training", "--max_elastic_nodes=1", "--master_addr=localhost",
           absl::StrCat("--master_port=", port.number()), "--num_gpus=2", "--no_local_rank",
           Teller(), "x"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(ReadOut("worker.1"), "1 of 2, 0 of 1, gpus , : x\n");
}

TEST_F(FrontDoorsTest, TheEnvironmentThatDeepSpeedWouldActivateRunsTheWorkers) {
  std::filesystem::create_directories(directory() + "/venv/bin");
  ShellScript("venv/bin/python",
              "echo its $RANK > $OUT/of.$RANK; exec /usr/bin/env python3 \"$@\"");
  const std::string script = PythonScript("t.py", "import sys; print('ran', sys.argv[1:])\n");
  const SubprocessResult result =
      Run({"deepspeed", "--num_gpus=1", "--no_local_rank",
           absl::StrCat("--venv_script=", directory(), "/venv/bin/activate"), script, "x"},
          {{"PYTHON_EXEC", ""}});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("ran ['x']"));
  EXPECT_EQ(ReadOut("of.0"), "its 0\n");
}

TEST_F(FrontDoorsTest, AMistypedSubcommandIsNoScriptAndALookedUpProgramIsNamed) {
  std::filesystem::create_directories(directory() + "/bin");
  ShellScript("bin/scale", "echo \"scale $RANK\"");
  const Environment changes = {{"PATH", directory() + "/bin:/usr/bin:/bin"}};
  const SubprocessResult refused = Run({"scale"}, changes);
  EXPECT_THAT(refused, ExitsWith(2));
  EXPECT_THAT(refused.err, HasSubstr("muster run --no_python scale"));
  EXPECT_THAT(refused.out, IsEmpty());
  for (const Arguments& line : {Arguments{"run", "scale"}, Arguments{"--no_python", "scale"}}) {
    const SubprocessResult result = Run(line, changes);
    EXPECT_EQ(result.out, "scale 0\n");
    EXPECT_THAT(result.err,
                HasSubstr(absl::StrCat("each worker runs ", directory(), "/bin/scale")));
  }
}

}  // namespace
}  // namespace muster::testing
