// A real Slurm starts real agents: no options, several tasks and jobs on the same nodes, and every
// way in which Slurm ends things. One Slurm serves all tests of this program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/slurm_cluster.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kJobPatience = absl::Seconds(90);
const std::string kWrappers = absl::StrCat(kSourceDirectory, "/deploy/slurm/");

class SlurmTest : public JobTest {
 protected:
  static void SetUpTestSuite() {
    if (SlurmCluster::WhyNot().empty()) cluster_ = std::make_unique<SlurmCluster>();
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    JobTest::SetUp();
    if (cluster_ == nullptr) GTEST_SKIP() << SlurmCluster::WhyNot();
    cluster_->AwaitIdleNodes();
    ASSERT_EQ(cluster_->trouble(), "");
  }

  Environment SlurmEnvironment() const {
    return {{"SLURM_CONF", cluster_->conf()},
            {"PATH", absl::StrCat(kBinaryDirectory, ":/usr/local/bin:/usr/bin:/bin")}};
  }

  Subprocess StartThere(const Arguments& argv, const Environment& changes = {}) const {
    Environment environment = SlurmEnvironment();
    for (const auto& [name, value] : changes) environment[name] = value;
    return StartProgram(cluster_->OnLoginNode(argv), environment);
  }

  Subprocess Srun(const Arguments& options, const Arguments& job) const {
    return StartThere(Arguments{"/usr/bin/srun"} + options + Arguments{MusterBinary()} + job);
  }

  // Hands in a batch script and returns the job's id; its output goes to $OUT/batch.
  std::string Submit(const Arguments& options, const Environment& changes = {}) const {
    const SubprocessResult result =
        StartThere(Arguments{"/usr/bin/sbatch", "--parsable", "--output=" + Out("batch")} + options,
                   changes)
            .Wait();
    EXPECT_EQ(result.exit_code, 0) << ToString(result);
    return std::string(absl::StripSuffix(result.out, "\n"));
  }

  std::string StateOf(const std::string& job) const {
    for (absl::string_view word :
         absl::StrSplit(cluster_->Ask({"/usr/bin/scontrol", "-o", "show", "job", job}), ' ')) {
      if (absl::ConsumePrefix(&word, "JobState=")) return std::string(word);
    }
    return "";
  }

  // Empty if it has not ended in time.
  std::string AwaitEnd(const std::string& job) const {
    std::string state;
    WaitUntil(
        [&] {
          state = StateOf(job);
          return state == "COMPLETED" || state == "FAILED" || state == "TIMEOUT" ||
                 state == "CANCELLED" || state == "NODE_FAIL";
        },
        kJobPatience);
    return state;
  }

  // The running job of this test.
  std::string RunningJob() const {
    std::string id;
    WaitUntil([&] {
      id = cluster_->Ask({"/usr/bin/squeue", "-h", "-t", "running", "-o", "%i"});
      return !id.empty();
    });
    return std::string(absl::StripSuffix(id, "\n"));
  }

  // Each line that begins with `word`, without the prefix of console lines, sorted.
  static std::vector<std::string> LinesOf(const std::string& text, const std::string& word) {
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      const size_t begin = line.find("] ");
      if (begin != absl::string_view::npos) line.remove_prefix(begin + 2);
      if (absl::StartsWith(line, word)) lines.emplace_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  // A worker that says who it is.
  std::string Teller() const {
    return ShellScript(
        "tell", "echo \"worker $RANK of $WORLD_SIZE on $(hostname) in $TORCHELASTIC_RUN_ID\"");
  }
  // A worker that counts the SIGTERMs it sees, and ends with 0 a second after the first.
  std::string Patient() const {
    return WriteScript(directory() + "/patient", R"(#!/bin/bash
n=0
trap 'n=$((n + 1))' TERM
touch "$OUT/up.$RANK"
while ((n == 0)); do sleep 0.1; done
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done
echo "saw $n" > "$OUT/terms.$RANK"
)");
  }

  static std::unique_ptr<SlurmCluster> cluster_;
};
std::unique_ptr<SlurmCluster> SlurmTest::cluster_;

TEST_F(SlurmTest, NeedsNoOptionsAndNumbersTheNodesAsSlurmDoes) {
  const SubprocessResult result = Srun({"-N4", "--ntasks-per-node=1"}, {Teller()}).Wait();
  EXPECT_THAT(result, ExitsWith(0));
  const std::vector<std::string> lines = LinesOf(result.out, "worker");
  ASSERT_EQ(lines.size(), 4u) << ToString(result);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(lines[rank],
                HasSubstr(absl::StrCat("worker ", rank, " of 4 on n", 8 + rank, " in slurm-")));
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("[n", 8 + rank, ":", rank, "] worker ", rank)));
  }
  EXPECT_THAT(result.err, HasSubstr("nnodes=4 (SLURM_STEP_NUM_NODES)"));
  EXPECT_THAT(result.err, HasSubstr("(SLURM_STEP_NODELIST)"));
}

TEST_F(SlurmTest, JobsAndStepsOnTheSameNodesDoNotMeet) {
  Subprocess one = Srun({"-N4", "--ntasks-per-node=1"}, {Teller()});
  Subprocess two = Srun({"-N4", "--ntasks-per-node=1"}, {Teller()});
  for (Subprocess* job : {&one, &two}) {
    const SubprocessResult result = job->Wait();
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_EQ(LinesOf(result.out, "worker").size(), 4u) << ToString(result);
    EXPECT_THAT(result.out, HasSubstr("of 4"));
  }
  const std::string script =
      WriteScript(directory() + "/steps",
                  absl::StrCat("#!/bin/bash\nfor i in 1 2; do srun --overlap --ntasks-per-node=1 ",
                               MusterBinary(), " ", Teller(), " & done\nwait\n"));
  EXPECT_EQ(AwaitEnd(Submit({"-N4", script})), "COMPLETED");
  const std::string out = ReadOut("batch");
  std::vector<std::string> ids;
  for (const std::string& line : LinesOf(out, "worker")) {
    EXPECT_THAT(line, HasSubstr(" of 4 on ")) << out;
    ids.push_back(line.substr(line.rfind('.')));
  }
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ".0"), 4) << out;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ".1"), 4) << out;
}

TEST_F(SlurmTest, TasksOfANodeAgreeOnOneAgent) {
  const SubprocessResult result =
      Srun({"-N2", "--ntasks-per-node=8", "--gpus-per-node=2"}, {Teller()}).Wait(kJobPatience);
  EXPECT_THAT(result, ExitsWith(0));
  const std::vector<std::string> lines = LinesOf(result.out, "worker");
  ASSERT_EQ(lines.size(), 16u) << ToString(result);
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("worker ", rank, " of 16 on n", 8 + rank / 8)));
  }
}

TEST_F(SlurmTest, StartsAWorkerForEachGpuAndExplainsNarrowing) {
  const SubprocessResult both =
      Srun({"-N2", "--ntasks-per-node=1", "--gpus-per-node=2"}, {Teller()}).Wait();
  EXPECT_EQ(LinesOf(both.out, "worker").size(), 4u) << ToString(both);
  const SubprocessResult bound =
      Srun({"-N2", "--ntasks-per-node=2", "--gpus-per-task=1"}, {Teller()}).Wait();
  EXPECT_THAT(bound, ExitsWith(2));
  EXPECT_THAT(bound.err, HasSubstr("--gpus-per-node=N"));
}

TEST_F(SlurmTest, TheRootCauseIsPrintedOnceAndItsCodeReachesTheRecordsOfSlurm) {
  const std::string failing = ShellScript("failing", "[ $RANK = 2 ] && exit 7; exec sleep 60");
  const SubprocessResult result = Srun({"-N4", "--ntasks-per-node=1"}, {failing}).Wait();
  EXPECT_THAT(result, ExitsWith(7));
  const std::vector<std::string> parts = absl::StrSplit(result.err, "Root Cause");
  EXPECT_EQ(parts.size(), 2u) << ToString(result);
  EXPECT_THAT(result.err, HasSubstr("n8 stopped because rank 2 on n10 exited with code 7"));
  EXPECT_TRUE(WaitUntil([] { return absl::StrContains(cluster_->Completions(), "ExitCode=7:0"); }))
      << cluster_->Completions();
}

// Slurm 22.05 does not set the variable; later ones do.
TEST_F(SlurmTest, TheTimeThatIsLeftIsSaid) {
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N2", "--ntasks-per-node=1", MusterBinary(), Teller()},
                 {{"SLURM_JOB_END_TIME", absl::StrCat(absl::ToUnixSeconds(absl::Now()) + 7500)}})
          .Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("Slurm ends this job in 2h"));
}

TEST_F(SlurmTest, BeforeTheTimeLimitAllRanksLeaveAfterOneStep) {
  const std::string sources = kSourceDirectory;
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N2", "--ntasks-per-node=1", MusterBinary(),
                  "--shutdown_timeout=110", sources + "/tests/integration/programs/job_probe.py"},
                 {{"JOB_MODULE", sources + "/deploy/python"},
                  {"SLURM_JOB_END_TIME", absl::StrCat(absl::ToUnixSeconds(absl::Now()) + 120)}})
          .Wait(kJobPatience);
  EXPECT_THAT(result, ExitsWith(143));
  const std::vector<std::string> left = LinesOf(result.out, "left after step");
  ASSERT_EQ(left.size(), 2u) << ToString(result);
  EXPECT_EQ(left[0], left[1]);
  EXPECT_THAT(left[0], HasSubstr("the job reaches its time limit in"));
}

TEST_F(SlurmTest, ANodeThatNeverStartsIsNamed) {
  const std::string wrapper = ShellScript(
      "wrapper", absl::StrCat("[ $SLURMD_NODENAME = n10 ] && exit 0; exec ", MusterBinary(),
                              " --rdzv_conf=join_timeout=2 ", Teller()));
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N4", "--ntasks-per-node=1", wrapper}).Wait();
  EXPECT_THAT(result, ExitsWith(4));
  EXPECT_THAT(result.err, HasSubstr("missing: node rank 2 (n10)"));
}

TEST_F(SlurmTest, ACancelledJobsWorkersSeeOneSignalAndHaveTheirGrace) {
  Subprocess srun = Srun({"-N2", "--ntasks-per-node=1"}, {Patient()});
  ASSERT_TRUE(WaitForOut("up.0") && WaitForOut("up.1"));
  cluster_->Ask({"/usr/bin/scancel", RunningJob()});
  srun.Wait();
  EXPECT_EQ(ReadOut("terms.0"), "saw 1\n");
  EXPECT_EQ(ReadOut("terms.1"), "saw 1\n");
}

TEST_F(SlurmTest, OtherSignalsArePassedOnOnceAndStopNothing) {
  const std::string script = WriteScript(directory() + "/usr1", R"(#!/bin/bash
trap 'echo usr1 >> "$OUT/usr1.$RANK"' USR1
touch "$OUT/up.$RANK"
while ! [ -s "$OUT/usr1.$RANK" ]; do sleep 0.1; done
sleep 0.5
)");
  Subprocess srun = Srun({"-N2", "--ntasks-per-node=1"}, {script});
  ASSERT_TRUE(WaitForOut("up.0") && WaitForOut("up.1"));
  cluster_->Ask({"/usr/bin/scancel", "--signal=USR1", RunningJob()});
  EXPECT_THAT(srun.Wait(), ExitsWith(0));
  EXPECT_EQ(ReadOut("usr1.0"), "usr1\n");
  EXPECT_EQ(ReadOut("usr1.1"), "usr1\n");
}

// In the round of all three, once all are up, the worker of n9 does `loss`; it knows its $agent and
// its guardian, $PPID. The others go on with `then`. A round of two may come first, where one node
// is slow.
std::string LoseN9(const std::string& loss, const std::string& then) {
  return absl::StrCat(
      "touch \"$OUT/up.$WORLD_SIZE.$RANK\"\n"
      "if [ $(hostname) = n9 ] && [ $WORLD_SIZE = 3 ]; then\n"
      "  for i in 0 1 2; do while ! [ -e \"$OUT/up.3.$i\" ]; do sleep 0.1; done; done\n"
      "  read -r a b c agent rest < /proc/$PPID/stat; touch \"$OUT/lost\"\n",
      loss, "\nfi\n", then);
}
// Has the effect of the loss of a node.
constexpr char kKillAgent[] = "kill -9 $agent $PPID";
constexpr char kGoOnWithTwo[] =
    "[ $WORLD_SIZE = 2 ] && [ -e \"$OUT/lost\" ] || exec sleep 600\n"
    "echo \"worker $RANK of $WORLD_SIZE\" > \"$OUT/again.$(hostname)\"";

TEST_F(SlurmTest, TheLossOfANodeEndsAJobOfAFixedSize) {
  const std::string script = ShellScript("worker", LoseN9(kKillAgent, "exec sleep 600"));
  const SubprocessResult result =
      Srun({"-N3", "--ntasks-per-node=1"}, {"--rdzv_conf=lease=2,renew_interval=0.5", script})
          .Wait();
  EXPECT_TRUE(result.ended);
  EXPECT_NE(result.exit_code, 0) << ToString(result);
  EXPECT_THAT(result.err, HasSubstr("n9"));
}

// Results are files: where a task was killed, srun may end before it has shown the others' last
// lines.
TEST_F(SlurmTest, WithNoKillAnElasticJobGoesOnWithoutTheLostNode) {
  const std::string script = ShellScript("worker", LoseN9(kKillAgent, kGoOnWithTwo));
  const SubprocessResult result =
      Srun({"-N3", "--ntasks-per-node=1", "--no-kill"},
           {"--nnodes=2:3", "--rdzv_conf=lease=2,renew_interval=0.5,last_call_timeout=1", script})
          .Wait(kJobPatience);
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(ReadOut("again.n8"), "worker 0 of 2\n") << ToString(result);
  EXPECT_EQ(ReadOut("again.n10"), "worker 1 of 2\n") << ToString(result);
}

// srun does not end then by itself, and shows nothing more of that node.
TEST_F(SlurmTest, ANodeWhoseStepDaemonIsKilledLeavesTheJobAndNoGhosts) {
  const std::string loss =
      "trap 'touch \"$OUT/told\"; exit 0' TERM\n"
      "kill -9 $(sed -n 's/^PPid:[[:space:]]*//p' /proc/$agent/status); while :; do sleep 0.1; "
      "done";
  Subprocess srun = Srun({"-N3", "--ntasks-per-node=1", "--no-kill"},
                         {"--nnodes=2:3", "--rdzv_conf=last_call_timeout=1",
                          ShellScript("worker", LoseN9(loss, kGoOnWithTwo))});
  // A shell's `>` makes the file before it writes the line.
  const bool went_on = WaitUntil(
      [&] { return !ReadOut("again.n8").empty() && !ReadOut("again.n10").empty(); }, kJobPatience);
  cluster_->Ask({"/usr/bin/scancel", RunningJob()});
  const SubprocessResult result = srun.Wait(kJobPatience);
  EXPECT_TRUE(went_on) << ToString(result);
  EXPECT_TRUE(FileExists(Out("told"))) << ToString(result);
  EXPECT_EQ(ReadOut("again.n8"), "worker 0 of 2\n");
  EXPECT_EQ(ReadOut("again.n10"), "worker 1 of 2\n");
  EXPECT_FALSE(FileExists(Out("again.n9")));
}

TEST_F(SlurmTest, ElementsOfAnArrayAreJobsOfTheirOwn) {
  const std::string script =
      WriteScript(directory() + "/array",
                  absl::StrCat("#!/bin/bash\nexec srun --ntasks-per-node=1 ", MusterBinary(), " ",
                               Teller(), " > $OUT/element.$SLURM_ARRAY_TASK_ID\n"));
  const std::string job = Submit({"-N2", "--array=0-1", script});
  for (const char* element : {"0", "1"}) {
    const std::string file = absl::StrCat("element.", element);
    EXPECT_TRUE(
        WaitUntil([&] { return LinesOf(ReadOut(file), "worker").size() == 2; }, kJobPatience))
        << ReadOut("batch");
    EXPECT_THAT(ReadOut(file), HasSubstr(absl::StrCat(" of 2 on n", "")));
    EXPECT_THAT(ReadOut(file), HasSubstr(absl::StrCat("in slurm-", job, "_", element, ".0")));
  }
}

// PyTorch's own example for Slurm, by a link of torchrun's name.
TEST_F(SlurmTest, TheTorchrunLineOfTheGuidesRunsUnderSrunAndSbatch) {
  std::filesystem::create_symlink(MusterBinary(), directory() + "/torchrun");
  const std::string line =
      absl::StrCat("srun --ntasks-per-node=1 ", directory(),
                   "/torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d "
                   "--rdzv_endpoint $head_node:29500 ",
                   Teller());
  const std::string batch = WriteScript(
      directory() + "/guide",
      absl::StrCat("#!/bin/bash\nnodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )\n"
                   "head_node=${nodes[0]}\n",
                   line, " > $OUT/guide\n"));
  EXPECT_EQ(AwaitEnd(Submit({"-N2", batch})), "COMPLETED") << ReadOut("batch");
  EXPECT_EQ(LinesOf(ReadOut("guide"), "worker").size(), 2u) << ReadOut("guide");
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N2", "--ntasks-per-node=1", directory() + "/torchrun",
                  "--nnodes=2", "--nproc_per_node=1", Teller()})
          .Wait(kJobPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(LinesOf(result.out, "worker").size(), 2u) << ToString(result);
}

TEST_F(SlurmTest, AWorkerMayUseTheCpusOfItsTask) {
  const std::string tell = ShellScript("threads", "echo \"threads $OMP_NUM_THREADS.\"");
  for (const unsigned cpus : {1u, 2u}) {
    if (cpus > std::thread::hardware_concurrency()) continue;
    const SubprocessResult result =
        Srun({"-N1", "-n1", absl::StrCat("--cpus-per-task=", cpus)}, {tell}).Wait();
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("threads ", cpus, ".")));
  }
}

TEST_F(SlurmTest, TheDoctorSpeaksOncePerNode) {
  const SubprocessResult result =
      Srun({"-N2", "--ntasks-per-node=2"}, {"doctor", "--json"}).Wait(kJobPatience);
  EXPECT_EQ(LinesOf(result.out, "{\"findings\"").size(), 2u) << ToString(result);
}

TEST_F(SlurmTest, TheDoctorMeasuresTheNetworkOfItsStep) {
  const SubprocessResult result =
      Srun({"-N3", "--ntasks-per-node=1"}, {"doctor"}).Wait(kJobPatience);
  EXPECT_THAT(result.out, ContainsRegex("bandwidth: .* Gbit/s")) << ToString(result);
  EXPECT_THAT(result.out, Not(HasSubstr("no connection")));
}

TEST_F(SlurmTest, ADoctorThatIsAloneInItsStepSaysSo) {
  const std::string script = ShellScript(
      "first", absl::StrCat("[ $SLURM_NODEID = 0 ] && exec ", MusterBinary(), " doctor\nexit 0"));
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N2", "--ntasks-per-node=1", script}).Wait(kJobPatience);
  EXPECT_THAT(result.out, ContainsRegex("warning: bandwidth: n[0-9]+ and n[0-9]+ have no "
                                        "connection, nor has any other pair"));
}

TEST_F(SlurmTest, ADrainedNodeIsLeftOut) {
  cluster_->Ask({"/usr/bin/scontrol", "update", "NodeName=n9", "State=DRAIN", "Reason=test"});
  const SubprocessResult result = Srun({"-N3", "--ntasks-per-node=1"}, {Teller()}).Wait();
  cluster_->Ask({"/usr/bin/scontrol", "update", "NodeName=n9", "State=RESUME"});
  EXPECT_THAT(result, ExitsWith(0));
  const std::vector<std::string> lines = LinesOf(result.out, "worker");
  ASSERT_EQ(lines.size(), 3u) << ToString(result);
  EXPECT_THAT(lines[0], HasSubstr("worker 0 of 3 on n8"));
  EXPECT_THAT(lines[1], HasSubstr("worker 1 of 3 on n10"));
  EXPECT_THAT(lines[2], HasSubstr("worker 2 of 3 on n11"));
}

TEST_F(SlurmTest, TheWrappersOfDeployRun) {
  // A spare that comes when all is over would wait for a server that has gone.
  const std::string slow = ShellScript("slow", "sleep 2; exec " + Teller());
  for (const std::string wrapper : {"fixed", "elastic", "spares"}) {
    const std::string job = Submit({"-N3", absl::StrCat(kWrappers, wrapper, ".sbatch"),
                                    "--rdzv_conf=last_call_timeout=1", slow});
    EXPECT_EQ(AwaitEnd(job), "COMPLETED") << ReadOut("batch");
    const int size = wrapper == "spares" ? 2 : 3;
    EXPECT_EQ(LinesOf(ReadOut("batch"), "worker").size(), static_cast<size_t>(size))
        << wrapper << ":\n"
        << ReadOut("batch");
  }
}

// It would else look for the server of a job that is over until its own patience ends.
TEST_F(SlurmTest, ASpareThatStartsAfterTheEndIsToldTheEnd) {
  const std::string wrapper = ShellScript(
      "wrapper",
      absl::StrCat(
          "if [ $SLURMD_NODENAME = n10 ]; then\n"
          "  while ! [ -e \"$OUT/done.0\" ] || ! [ -e \"$OUT/done.1\" ]; do sleep 0.1; done\n"
          "  sleep 2\nfi\nexec ",
          MusterBinary(), " --nnodes=2 --rdzv_conf=join_timeout=600,last_call_timeout=1 ",
          ShellScript("worker", "touch \"$OUT/done.$RANK\"")));
  const SubprocessResult result =
      StartThere({"/usr/bin/srun", "-N3", "--ntasks-per-node=1", wrapper}).Wait(kJobPatience);
  EXPECT_THAT(result, ExitsWith(0));
}

// Programs in the place of apptainer and of an srun that has the plugin pyxis note what they are
// given, and run what is behind it.
TEST_F(SlurmTest, TheWrappersForContainersStartMusterInThem) {
  const std::string programs = directory() + "/programs";
  std::filesystem::create_directory(programs);
  WriteScript(programs + "/apptainer", R"(#!/bin/bash
echo "$*" > "$OUT/apptainer.$SLURMD_NODENAME"
shift 3
exec "$@"
)");
  WriteScript(programs + "/srun", R"(#!/bin/bash
echo "$*" > "$OUT/srun"
while [[ $1 == --container-* ]]; do shift; done
exec /usr/bin/srun "$@"
)");
  const Environment environment = {
      {"IMAGE", "/images/train"},
      {"PATH", absl::StrCat(programs, ":", SlurmEnvironment().at("PATH"))}};
  const std::string worker =
      ShellScript("worker", "echo \"worker $RANK of $WORLD_SIZE, token ${#MUSTER_TOKEN}: $*\"");
  for (const std::string wrapper : {"apptainer", "enroot"}) {
    const std::string job = Submit(
        {"-N2", absl::StrCat(kWrappers, wrapper, ".sbatch"), worker, "--lr", "1"}, environment);
    EXPECT_EQ(AwaitEnd(job), "COMPLETED") << ReadOut("batch");
    EXPECT_THAT(LinesOf(ReadOut("batch"), "worker"),
                ElementsAre("worker 0 of 2, token 0: --lr 1", "worker 1 of 2, token 0: --lr 1"))
        << wrapper;
  }
  const std::string command = absl::StrCat("muster ", worker, " --lr 1\n");
  for (const char* node : {"n8", "n9"}) {
    EXPECT_EQ(ReadOut(absl::StrCat("apptainer.", node)),
              absl::StrCat("exec --nv /images/train ", command));
  }
  EXPECT_THAT(ReadOut("srun"), AllOf(HasSubstr("--container-image=/images/train "),
                                     HasSubstr("--container-mounts="), EndsWith(" " + command)));
}

TEST_F(SlurmTest, AnUnfinishedJobGoesBackIntoTheQueueAndIsANewJob) {
  const std::string script = WriteScript(directory() + "/unfinished", R"(#!/bin/bash
echo "worker $RANK in $TORCHELASTIC_RUN_ID"
((${SLURM_RESTART_COUNT:-0} > 0)) && exit 0
trap 'exit 85' USR1
touch "$OUT/up.$RANK"
while :; do sleep 0.1; done
)");
  const std::string job = Submit({"-N2", absl::StrCat(kWrappers, "preemptible.sbatch"), script});
  ASSERT_TRUE(WaitForOut("up.0") && WaitForOut("up.1")) << ReadOut("batch");
  cluster_->Ask({"/usr/bin/scancel", "--signal=USR1", job});
  EXPECT_EQ(AwaitEnd(job), "COMPLETED") << ReadOut("batch");
  EXPECT_THAT(LinesOf(ReadOut("batch"), "worker"),
              ElementsAre(absl::StrCat("worker 0 in slurm-", job, ".0"),
                          absl::StrCat("worker 0 in slurm-", job, ".0.r1"),
                          absl::StrCat("worker 1 in slurm-", job, ".0"),
                          absl::StrCat("worker 1 in slurm-", job, ".0.r1")));
}

// Slurm's shortest limit is a minute. It sends SIGTERM twice within milliseconds, here to the
// workers themselves too; neither the second nor ours shortens their grace.
TEST_F(SlurmTest, AtTheTimeLimitWorkersHaveTheirGrace) {
  const std::string script =
      WriteScript(directory() + "/limited",
                  absl::StrCat("#!/bin/bash\nexec srun --ntasks-per-node=1 ", MusterBinary(),
                               " --shutdown_timeout=5 ", Patient(), "\n"));
  const std::string job = Submit({"-N2", "--time=1", script});
  ASSERT_TRUE(WaitForOut("up.0") && WaitForOut("up.1")) << ReadOut("batch");
  EXPECT_TRUE(WaitUntil([&] { return FileExists(Out("terms.0")) && FileExists(Out("terms.1")); },
                        absl::Minutes(3)))
      << ReadOut("batch");
  EXPECT_EQ(AwaitEnd(job), "TIMEOUT");
  EXPECT_THAT(ReadOut("batch"), Not(HasSubstr("interrupted again")));
}

}  // namespace
}  // namespace muster::testing
