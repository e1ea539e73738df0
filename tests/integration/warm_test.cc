// --warm: workers that are forked by a process which has imported their modules. What they find of
// themselves is compared with what fresh ones find; what cannot be forked starts as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kForked[] = "2 workers forked by the warm process";
constexpr char kReady[] = "the warm process is ready";

std::string ProgramText(const std::string& name) {
  return ReadFile(absl::StrCat(kSourceDirectory, "/tests/integration/programs/warm/", name));
}

class Warm : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    for (const char* folder : {modules_.path().c_str(), script_.path().c_str()}) {
      ASSERT_FALSE(std::string(folder).empty());
    }
    WriteFile(modules_.File("bank.py"), ProgramText("bank.py"));
    WriteFile(script_.File("warm_rank.py"), ProgramText("warm_rank.py"));
  }

  Environment Changes() const {
    return {{"PYTHONPATH", modules_.path()}, {"OMP_NUM_THREADS", "1"}};
  }
  std::string script() const { return script_.File("warm_rank.py"); }
  std::string bank() const { return modules_.File("bank.py"); }

  // A job of two ranks whose first attempt fails as `how` says once told to.
  Subprocess StartJob(const Arguments& options, const std::string& how) const {
    return Start(Arguments{"run", "--nproc_per_node=2", "--max_restarts=1", "--log_level=debug"} +
                     options + Arguments{script(), out(), how},
                 Changes());
  }
  void EndFirstAttempt() const { WriteFile(Out("go"), ""); }
  // Such a job, whose first attempt is told to fail once the job has said `line`.
  SubprocessResult RunJob(const Arguments& options, const std::string& how,
                          const std::string& line = kReady) const {
    Subprocess job = StartJob(options, how);
    EXPECT_TRUE(BothHaveSpoken(0));
    EXPECT_TRUE(job.WaitForOutput(line));
    EndFirstAttempt();
    SubprocessResult result = job.Wait();
    EXPECT_THAT(result, ExitsWith(0));
    return result;
  }
  Json Found(int attempt, int rank) const {
    return Json::parse(ReadOut(absl::StrCat(attempt, ".", rank)), nullptr, false);
  }
  // The guardian's child that is no rank; 0: there is none.
  pid_t WarmPid() const {
    const std::set<pid_t> ranks = {Found(0, 0)["own"]["pid"], Found(0, 1)["own"]["pid"]};
    for (const pid_t pid : ChildrenOf(Found(0, 0)["own"]["parent"])) {
      if (!ranks.contains(pid)) return pid;
    }
    return 0;
  }
  // Those that wait to be workers.
  std::set<pid_t> WaitingPids() const {
    std::set<pid_t> waiting;
    for (const pid_t between : ChildrenOf(WarmPid())) {
      for (const pid_t pid : ChildrenOf(between)) waiting.insert(pid);
    }
    return waiting;
  }
  bool BothHaveSpoken(int attempt) const {
    return WaitForOut(absl::StrCat(attempt, ".0")) && WaitForOut(absl::StrCat(attempt, ".1"));
  }
  // The module lies beside the bank.
  void WriteModule(const std::string& name, const std::string& text) const {
    const std::string path = modules_.File(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    WriteFile(path, text);
  }
  // Called before another job of the same test.
  void Forget() const {
    for (const std::string& file : FilesBelow(out())) std::remove(Out(file).c_str());
  }

 private:
  TemporaryDirectory modules_, script_;
};

// Which ranks have lines in `text`, and how often.
int CountOf(const std::string& part, const std::string& text) {
  return static_cast<int>(std::vector<std::string>(absl::StrSplit(text, part)).size()) - 1;
}

TEST_F(Warm, AForkedWorkerFindsWhatAFreshOneFinds) {
  for (const char* how : {"kill", "exception"}) {
    SCOPED_TRACE(how);
    const std::string logs = absl::StrCat(directory(), "/", how);
    const SubprocessResult result = RunJob({"--warm=bank", "--log_dir=" + logs}, how);
    EXPECT_THAT(result.err, HasSubstr(kForked));
    EXPECT_THAT(Run({"report", logs}).out, HasSubstr("(2 forked, back after "));
    for (const int rank : {0, 1}) {
      const Json fresh = Found(0, rank), forked = Found(1, rank);
      ASSERT_TRUE(fresh.is_object() && forked.is_object()) << fresh << forked;
      EXPECT_EQ(fresh["same"], forked["same"]);
      EXPECT_EQ(fresh["own"]["imported_in"], fresh["own"]["pid"]);
      EXPECT_NE(forked["own"]["imported_in"], forked["own"]["pid"]);
      EXPECT_EQ(fresh["own"]["parent"], forked["own"]["parent"]);  // the guardian
    }
    for (const char* drawn : {"random", "name", "key"}) {
      EXPECT_NE(Found(1, 0)["own"][drawn], Found(1, 1)["own"][drawn]) << drawn;
    }
    // Each worker of both attempts has printed what the module prints.
    EXPECT_EQ(CountOf("the bank opens", result.out), 4);
    // So does each that was not killed with what the module prints as Python ends.
    EXPECT_EQ(CountOf("the vault closes", result.out), how == std::string("kill") ? 2 : 3);
    Forget();
  }
}

TEST_F(Warm, AnUncaughtExceptionIsPrintedAsByAFreshInterpreter) {
  WriteFile(script(),
            "import os, sys, time, bank\n"
            "def inner(): raise ValueError('rank 0 gives up')\n"
            "def outer():\n"
            "    while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and "
            "not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.02)\n"
            "    inner()\n"
            "outer()\n");
  Subprocess job = Start({"run", "--max_restarts=1", "--warm=bank", script(), out()}, Changes());
  ASSERT_TRUE(job.WaitForOutput(kReady));
  EndFirstAttempt();
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_EQ(CountOf("Traceback (most recent call last)", result.err), 2);
  EXPECT_EQ(CountOf("in <module>", result.err), 2);
  EXPECT_GE(CountOf("ValueError: rank 0 gives up", result.err), 2);  // the summary has it too
  EXPECT_THAT(result.err, Not(HasSubstr("muster_warm")));
  EXPECT_THAT(result.err, Not(HasSubstr("sitecustomize")));
}

TEST_F(Warm, AnAttemptThatEndsBeforeItIsReadyIsFollowedByAFreshOne) {
  EndFirstAttempt();
  WriteFile(bank(),
            "import time, os\nPID = os.getpid()\n"
            "if 'RANK' not in dict(os.environ): time.sleep(60)\n");
  const std::string logs = directory() + "/logs";
  const SubprocessResult result =
      StartJob({"--warm=bank", "--log_dir=" + logs}, "exception").Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("the warm process is not ready yet"));
  EXPECT_THAT(Run({"report", logs}).out,
              HasSubstr("(2 fresh because the warm process is not ready yet, "));
  EXPECT_EQ(Found(1, 0)["own"]["imported_in"], Found(1, 0)["own"]["pid"]);
}

TEST_F(Warm, AModuleThatReadsWhatIsOfOneWorkerAsItIsImportedIsLeftOut) {
  for (const char* name : {"RANK", "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"}) {
    SCOPED_TRACE(name);
    WriteFile(bank(), absl::StrCat("import os\nREAD = os.environ.get('", name, "')\n",
                                   ProgramText("bank.py")));
    const SubprocessResult result = RunJob({"--warm=bank,json"}, "exception");
    EXPECT_THAT(result.err,
                HasSubstr(absl::StrCat("without bank: bank reads ", name, " when it is imported")));
    EXPECT_THAT(result.err, HasSubstr(kForked));
    EXPECT_EQ(Found(1, 0)["own"]["imported_in"], Found(1, 0)["own"]["pid"]);
    Forget();
  }
}

TEST_F(Warm, AModuleWhoseThingsWouldBeLostOrSharedCannotBeForked) {
  const std::pair<const char*, const char*> modules[] = {
      {"import threading, time\n"
       "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
       "1 threads run after the imports"},
      {"import multiprocessing\nLOCK = multiprocessing.Lock()\n",
       "memory that all workers would share"},
      {"import socket\nENDS = socket.socketpair()\n", "which all workers would share"},
  };
  for (const auto& [text, reason] : modules) {
    SCOPED_TRACE(text);
    WriteFile(bank(), text + ProgramText("bank.py"));
    RunJob({"--warm=bank"}, "exception", reason);
    EXPECT_EQ(Found(1, 0)["own"]["imported_in"], Found(1, 0)["own"]["pid"]);
    Forget();
  }
}

// A torch of which a second module, that an optimizer would import, opens what must not be open.
TEST_F(Warm, WhatIsImportedAheadOfItsUseIsLeftOutWhereItPreventsForking) {
  WriteFile(bank(), ProgramText("bank.py") + "import torch\n");
  for (const bool is_harmless : {true, false}) {
    SCOPED_TRACE(is_harmless);
    WriteModule("torch/__init__.py",
                "class Ones:\n"
                "    def __matmul__(self, other): return self\n"
                "    def sum(self): return 256.0**3\n"
                "def ones(*shape): return Ones()\n");
    WriteModule("torch/_dynamo.py",
                is_harmless ? "" : "import socket\nENDS = socket.socketpair()\n");
    const SubprocessResult result = RunJob({"--warm=bank,torch"}, "exception");
    EXPECT_THAT(result.err, HasSubstr(kForked));
    EXPECT_EQ(Found(1, 0)["own"]["has_dynamo"], is_harmless);
    Forget();
  }
}

TEST_F(Warm, AModuleThatHasChangedIsImportedAnew) {
  Subprocess job = StartJob({"--warm=bank"}, "exception");
  ASSERT_TRUE(BothHaveSpoken(0));
  ASSERT_TRUE(job.WaitForOutput(kReady));
  WriteFile(bank(), ProgramText("bank.py") + "print('the new bank')\n");
  EndFirstAttempt();
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("bank.py has changed since it was imported"));
  EXPECT_EQ(CountOf("the new bank", result.out), 2);
}

TEST_F(Warm, WorkersAreForkedBeforeTheyAreAskedFor) {
  Subprocess job = StartJob({"--warm=bank"}, "exception");
  ASSERT_TRUE(BothHaveSpoken(0));
  ASSERT_TRUE(job.WaitForOutput(kReady));
  ASSERT_TRUE(WaitUntil([&] { return WaitingPids().size() == 2; }));
  const pid_t killed = *WaitingPids().begin();
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  std::set<pid_t> waiting;
  ASSERT_TRUE(WaitUntil([&] {
    waiting = WaitingPids();
    return waiting.size() == 2 && !waiting.contains(killed);
  }));
  EndFirstAttempt();
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr(kForked));
  for (const int rank : {0, 1}) EXPECT_TRUE(waiting.contains(Found(1, rank)["own"]["pid"])) << rank;
}

TEST_F(Warm, AWarmProcessThatIsKilledCostsNothingButItsWarmth) {
  Subprocess job = StartJob({"--warm=bank"}, "exception");
  ASSERT_TRUE(BothHaveSpoken(0));
  ASSERT_TRUE(job.WaitForOutput(kReady));
  const pid_t warm = WarmPid();
  ASSERT_GT(warm, 0);
  ASSERT_EQ(kill(warm, SIGKILL), 0);
  EndFirstAttempt();
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(Found(1, 0)["own"]["imported_in"], Found(1, 0)["own"]["pid"]);
}

TEST_F(Warm, AWarmProcessThatHangsIsNotForkedAndALineSaysWhy) {
  Subprocess job = StartJob({"--warm=bank"}, "exception");
  ASSERT_TRUE(BothHaveSpoken(0));
  ASSERT_TRUE(job.WaitForOutput(kReady));
  const pid_t warm = WarmPid();
  ASSERT_GT(warm, 0);
  std::vector<pid_t> stopped = {warm};
  ASSERT_TRUE(WaitUntil([&] { return WaitingPids().size() == 2; }));
  for (const pid_t pid : WaitingPids()) stopped.push_back(pid);
  for (const pid_t pid : stopped) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  EndFirstAttempt();
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("has not handed over a worker within"));
  EXPECT_EQ(Found(1, 0)["own"]["imported_in"], Found(1, 0)["own"]["pid"]);
}

// Neither delays the end of the job: the grace is longer than the test may take.
TEST_F(Warm, AWaitingProcessThatIsKilledDoesNotHoldUpTheEnd) {
  for (const bool kills_parents : {false, true}) {
    SCOPED_TRACE(kills_parents);
    EndFirstAttempt();
    WriteFile(script(), R"(import os, sys, time
rank = os.environ["RANK"]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import bank
with open(os.path.join(sys.argv[1], rank), "w") as file:
    file.write("%d %d" % (os.getpid(), os.getppid()))
while not os.path.exists(sys.argv[1] + "/end"):
    time.sleep(0.02)
)");
    Subprocess job = Start(
        {"run", "--nproc_per_node=2", "--warm=bank", "--shutdown_timeout=600", script(), out()},
        Changes());
    ASSERT_TRUE(job.WaitForOutput(kReady));
    ASSERT_TRUE(WaitForOut("0") && WaitForOut("1"));
    pid_t ranks[2], guardian = 0;
    for (const int rank : {0, 1}) {
      ASSERT_EQ(std::sscanf(ReadOut(absl::StrCat(rank)).c_str(), "%d %d", &ranks[rank], &guardian),
                2);
    }
    pid_t warm = 0;
    for (const pid_t pid : ChildrenOf(guardian)) {
      if (pid != ranks[0] && pid != ranks[1]) warm = pid;
    }
    std::set<pid_t> killed;
    ASSERT_TRUE(WaitUntil([&] {
      killed.clear();
      for (const pid_t between : ChildrenOf(warm)) {
        for (const pid_t pid : ChildrenOf(between)) killed.insert(kills_parents ? between : pid);
      }
      return killed.size() == 2;
    }));
    for (const pid_t pid : killed) ASSERT_EQ(kill(pid, SIGKILL), 0);
    WriteFile(Out("end"), "");
    const SubprocessResult result = job.Wait();
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, Not(HasSubstr("left running")));
    Forget();
  }
}

TEST_F(Warm, AProgramThatPythonDoesNotRunIsRefused) {
  const SubprocessResult result =
      Run({"run", "--warm=auto", ShellScript("train.sh", "echo hello")});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, AllOf(HasSubstr("--warm=auto"), HasSubstr("is not a Python script")));
}

TEST_F(Warm, WhatIsNoModuleIsRefused) {
  for (const char* wrong : {"torch,auto", "a b", "torch,", "3d"}) {
    const SubprocessResult result = Run({"run", absl::StrCat("--warm=", wrong), script()});
    EXPECT_THAT(result, ExitsWith(2)) << wrong;
    EXPECT_THAT(result.err, HasSubstr("--warm=")) << wrong;
  }
}

// What the first attempt has compiled lies where the second looks for it.
TEST_F(Warm, ALocalCacheKeepsWhatPyTorchCompiles) {
  if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  WriteFile(script(),
            "import os, sys, torch\n"
            "folder = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
            "before = sum(len(files) for _, _, files in os.walk(folder))\n"
            "x = torch.arange(64.0)\n"
            "assert torch.equal(torch.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)\n"
            "print('found', before > 0, 'in', folder, 'and', os.environ['TRITON_CACHE_DIR'])\n"
            "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n");
  Environment changes = Changes();
  changes["PYTHON_EXEC"] = PeerPython();
  changes["TRITON_CACHE_DIR"] = "/chosen/by/the/user";
  const std::string cache = directory() + "/cache";
  const SubprocessResult result =
      Start({"run", "--max_restarts=1", "--local_cache=" + cache, script()}, changes)
          .Wait(absl::Seconds(170));
  EXPECT_THAT(result, ExitsWith(0));
  for (const char* found : {"False", "True"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("found ", found, " in ", cache,
                                                   "/inductor and /chosen/by/the/user\n")));
  }
}

TEST_F(Warm, ALocalCacheThatCannotBeMadeIsRefused) {
  const SubprocessResult result = Run({"run", "--local_cache=/dev/null/cache", script()});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("--local_cache: /dev/null/cache/"));
}

// Four ranks of PyTorch; what the first attempt has imported is found by the hook.
TEST_F(Warm, RanksOfPyTorchMeetAgainInForkedProcesses) {
  if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  WriteFile(script(), ProgramText("warm_torch.py"));
  Environment changes = Changes();
  changes["PYTHON_EXEC"] = PeerPython();
  changes["GLOO_SOCKET_IFNAME"] = "lo";
  Subprocess job = Start(
      {"run", "--nproc_per_node=4", "--max_restarts=1", "--warm=auto", script(), out()}, changes);
  ASSERT_TRUE(job.WaitForOutput(kReady, absl::Seconds(170)));
  EndFirstAttempt();
  const SubprocessResult result = job.Wait(absl::Seconds(170));
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("4 workers forked by the warm process"));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(result.out,
                HasSubstr(absl::StrCat("rank ", rank, " of 4: sum 6, forked True, dynamo True\n")));
  }
  // Drawn by each for itself, and by torch as by a seed alike.
  std::set<std::string> drawn, seeded;
  for (absl::string_view line : absl::StrSplit(result.out, '\n')) {
    const size_t at = line.find("drawn ");
    if (at != absl::string_view::npos) drawn.insert(std::string(line.substr(at)));
    const size_t same = line.find("seeded ");
    if (same != absl::string_view::npos) seeded.insert(std::string(line.substr(same)));
  }
  EXPECT_EQ(drawn.size(), 8u);
  EXPECT_EQ(seeded.size(), 1u);
}

// Every package of warm_start.cc's table, with one thread and with two.
TEST_F(Warm, WhatAutoImportsComputesAsInAFreshProcess) {
  if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  WriteFile(script(), ProgramText("warm_packages.py"));
  for (const char* threads : {"1", "2"}) {
    SCOPED_TRACE(threads);
    Environment changes = Changes();
    changes["PYTHON_EXEC"] = PeerPython();
    changes["GLOO_SOCKET_IFNAME"] = "lo";
    changes["OMP_NUM_THREADS"] = threads;
    Subprocess job = Start(
        {"run", "--nproc_per_node=2", "--max_restarts=1", "--warm=auto", script(), out()}, changes);
    ASSERT_TRUE(job.WaitForOutput(kReady, absl::Seconds(170)));
    ASSERT_TRUE(job.WaitForOutput("rank 0 attempt 0", absl::Seconds(170)));
    ASSERT_TRUE(job.WaitForOutput("rank 1 attempt 0", absl::Seconds(170)));
    EndFirstAttempt();
    const SubprocessResult result = job.Wait(absl::Seconds(170));
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, AllOf(HasSubstr("accelerate, numpy, torch, transformers imported"),
                                  HasSubstr(kForked)));
    std::map<std::string, std::string> said;  // by "rank R attempt A"
    for (absl::string_view line : absl::StrSplit(result.out, '\n')) {
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
      if (parts.size() == 2) said[parts[0]] = parts[1];
    }
    for (const char* rank : {"rank 0", "rank 1"}) {
      EXPECT_EQ(said[absl::StrCat(rank, " attempt 0")], said[absl::StrCat(rank, " attempt 1")]);
      EXPECT_THAT(said[absl::StrCat(rank, " attempt 1")],
                  HasSubstr(absl::StrCat("threads (", threads, ", ")));
    }
    std::remove(Out("go").c_str());
  }
}

}  // namespace
}  // namespace muster::testing
