// agent/watch/torch_hook.py in real Pythons: where the environment of `deploy/dev deps --peers` is,
// with PyTorch too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kPatience = absl::Minutes(4);

// A process group of one rank; then what the hook has left behind, and who serves.
constexpr char kOneRank[] =
    "import os, socket, sys\n"
    "import torch.distributed as dist\n"
    "def serves():\n"
    "    try:\n"
    "        with socket.socket(socket.AF_UNIX) as s:\n"
    "            s.settimeout(30)\n"
    "            s.connect(os.environ['MUSTER_TORCH_SERVER'] + (sys.argv[2:] or [''])[0])\n"
    "            request = (b'POST /handler/' + sys.argv[1].encode() +\n"
    "                       b' HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n'\n"
    "                       b'Connection: close\\r\\n\\r\\n')\n"
    "            s.sendall(request)\n"
    "            text = b''\n"
    "            while part := s.recv(65536): text += part\n"
    "            return text.decode().splitlines()[-1]\n"
    "    except OSError as error:\n"
    "        return type(error).__name__\n"
    "if __name__ == '__main__':\n"
    "    print('before:', serves())\n"
    "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "    dist.new_group([0])\n"
    "    print('after:', serves())\n"
    "    dist.destroy_process_group()\n";

// The threads whose time is not the program's (agent/watch/process_look.cc).
constexpr char kNamesOfThreads[] =
    "    threads = [open(f'/proc/self/task/{t}/comm').read().strip()\n"
    "               for t in os.listdir('/proc/self/task')]\n"
    "    print('threads:', *sorted({'muster_hook', 'pt_workerserver'} & set(threads)))\n";

class TorchHook : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    hook_ = absl::StrCat(directory(), "/hook");
    std::filesystem::create_directories(hook_);
    WriteFile(hook_ + "/sitecustomize.py",
              ReadFile(absl::StrCat(kSourceDirectory, "/agent/watch/torch_hook.py")));
  }
  Environment With(const std::string& more_python_path = "") const {
    return {{"PYTHONPATH", more_python_path.empty() ? hook_ : hook_ + ":" + more_python_path},
            {"MUSTER_TORCH_SERVER", socket()},
            {"PYTHONDONTWRITEBYTECODE", "1"}};
  }
  std::string socket() const { return directory() + "/s"; }
  SubprocessResult Python(const std::string& python, const Arguments& arguments,
                          const Environment& changes) const {
    return StartProgram(Arguments{"/usr/bin/env", python} + arguments, changes).Wait(kPatience);
  }

  std::string hook_;
};

class TorchHookWithTorch : public TorchHook {
 protected:
  void SetUp() override {
    TorchHook::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }
};

TEST_F(TorchHook, TakesItselfOffTheSearchPathAndSaysNothing) {
  const SubprocessResult result = Python(
      "python3", {"-c", "import sys; print(sys.path, 'sitecustomize' in sys.modules)"}, With());
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, Not(HasSubstr(hook_)));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(TorchHook, SaysNothingInAFolderThatIsGone) {
  const std::string gone = directory() + "/gone";
  const SubprocessResult result = Python(
      "sh",
      {"-c", "mkdir \"$1\" && cd \"$1\" && rmdir \"$1\" && exec python3 -c 'print(7)'", "sh", gone},
      With());
  EXPECT_EQ(result.out, "7\n");
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(TorchHook, ImportsNothingThatPythonDoesNot) {
  const Arguments list = {"-c", "import sys; print(sorted(set(sys.modules) - {'sitecustomize'}))"};
  const SubprocessResult with = Python("python3", list, With());
  Environment without = With();
  without["PYTHONPATH"] = directory();
  EXPECT_EQ(with.out, Python("python3", list, without).out);
}

TEST_F(TorchHook, RunsTheSitecustomizeThatItHides) {
  std::filesystem::create_directories(directory() + "/other");
  WriteFile(directory() + "/other/sitecustomize.py", "print('the other'); NAME = 'other'\n");
  const SubprocessResult result =
      Python("python3", {"-c", "import sitecustomize; print(sitecustomize.NAME)"},
             With(directory() + "/other"));
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "the other\nother\n");
}

// Python's own words about a sitecustomize that fails; the program runs.
TEST_F(TorchHook, HidesNoErrorOfTheSitecustomizeThatItHides) {
  std::filesystem::create_directories(directory() + "/other");
  WriteFile(directory() + "/other/sitecustomize.py", "import no_such_module\n");
  Environment alone = With();
  alone["PYTHONPATH"] = directory() + "/other";
  const SubprocessResult result =
      Python("python3", {"-c", "print('runs')"}, With(directory() + "/other"));
  EXPECT_EQ(result.out, "runs\n");
  EXPECT_EQ(result.err, Python("python3", {"-c", "print('runs')"}, alone).err);
}

TEST_F(TorchHook, IsSilentlyAbsentWherePythonIsToLookNowhere) {
  for (const char* option : {"-I", "-E", "-S"}) {
    const SubprocessResult result = Python(
        "python3", {option, "-c", "import sys; print('sitecustomize' in sys.modules)"}, With());
    EXPECT_THAT(result, ExitsWith(0)) << option;
    EXPECT_THAT(result.err, IsEmpty()) << option;
  }
}

TEST_F(TorchHook, IsSilentlyAbsentWherePyTorchHasNoSuchServer) {
  const std::string torch = directory() + "/old/torch";
  for (const std::string& folder : {directory() + "/old", torch, torch + "/distributed"}) {
    std::filesystem::create_directories(folder);
    WriteFile(folder + "/__init__.py", "");
  }
  WriteFile(torch + "/distributed/distributed_c10d.py",
            "def init_process_group(backend):\n    print('made', backend)\n");
  const SubprocessResult result =
      Python("python3",
             {"-c",
              "import importlib.util, sys\n"
              "before = len(sys.meta_path)\n"
              // A program that only asks where it is leaves all as it was.
              "importlib.util.find_spec('torch.distributed.distributed_c10d')\n"
              "from torch.distributed.distributed_c10d import init_process_group as f\nf('x')\n"
              "print(f.__name__, f.__wrapped__.__name__, before - len(sys.meta_path))"},
             With(directory() + "/old"));
  EXPECT_EQ(result.out, "made x\ninit_process_group init_process_group 1\n");
  EXPECT_THAT(result.err, IsEmpty());
}

// A job in a worker of a job in a worker: three hooks lie on the path, and one acts.
TEST_F(TorchHook, IsOneOfThoseOfJobsWithinJobsAndFindsTheModuleForTwoThreadsAtOnce) {
  const std::string torch = directory() + "/fake/torch";
  for (const std::string& folder : {directory() + "/fake", torch, torch + "/distributed"}) {
    std::filesystem::create_directories(folder);
    WriteFile(folder + "/__init__.py", "");
  }
  WriteFile(torch + "/distributed/distributed_c10d.py",
            "import time\ntime.sleep(.2)\ndef init_process_group():\n    print('made')\n");
  std::string path;
  for (const char* name : {"inner", "middle", "outer"}) {
    const std::string folder = absl::StrCat(directory(), "/", name);
    std::filesystem::create_directories(folder);
    std::filesystem::copy(hook_ + "/sitecustomize.py", folder + "/sitecustomize.py");
    WriteFile(folder + "/muster_warm.py", "");
    absl::StrAppend(&path, folder, ":");
  }
  Environment environment = With();
  environment["PYTHONPATH"] = path + directory() + "/fake";
  const SubprocessResult result =
      Python("python3",
             {"-c",
              "import importlib, sys, threading\n"
              // Another finder that asks all others, as hooks of other tools do.
              "class Asks:\n"
              "    @staticmethod\n"
              "    def find_spec(name, path=None, target=None):\n"
              "        if not name.startswith('torch'): return None\n"
              "        others = [f for f in sys.meta_path if f is not Asks]\n"
              "        specs = [f.find_spec(name, path, target) for f in others]\n"
              "        return next((s for s in specs if s), None)\n"
              "sys.meta_path.insert(0, Asks)\n"
              "name = 'torch.distributed.distributed_c10d'\n"
              "found = []\n"
              "ts = [threading.Thread(target=lambda: found.append(importlib.import_module(name)))\n"
              "      for _ in range(2)]\n"
              "[t.start() for t in ts]; [t.join() for t in ts]\n"
              "f = found[0].init_process_group\n"
              "f()\n"
              "print(len(found), hasattr(f.__wrapped__, '__wrapped__'),\n"
              "      [p for p in sys.path if p.rsplit('/')[-1] in ('inner', 'middle', 'outer')])"},
             environment);
  EXPECT_EQ(result.out, "made\n2 False []\n");
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(TorchHookWithTorch, ServesOnceTheFirstProcessGroupIsMade) {
  const std::string script = PythonScript("train.py", absl::StrCat(kOneRank, kNamesOfThreads));
  const SubprocessResult result = Python(PeerPython(), {script, "ping"}, With());
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out,
            "before: FileNotFoundError\nafter: pong\nthreads: muster_hook pt_workerserver\n");
  EXPECT_THAT(result.err, Not(HasSubstr("WorkerServer")));
}

TEST_F(TorchHookWithTorch, TellsTheRanksOfEachGroupAndWhereTheMainThreadIs) {
  const std::string script = PythonScript("train.py", kOneRank);
  const SubprocessResult result = Python(PeerPython(), {script, "python", "p"}, With());
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("{\"groups\": {\"0\": [0], \"1\": [0]}, \"stack\": [[\"serves\", "),
                    HasSubstr("\"call\": {}")));
}

// What Python gives of the variables of a function, before 3.13, keeps what they hold.
TEST_F(TorchHookWithTorch, KeepsNothingAliveThatItHasLookedAt) {
  const std::string script = PythonScript(
      "train.py",
      absl::StrCat(kOneRank,
                   "    import threading, time, weakref\n"
                   "    class Own:\n"
                   "        wait = staticmethod(time.sleep)\n"
                   "    def waits():\n"
                   "        own = Own()\n"
                   "        kept = weakref.ref(own)\n"
                   "        looks = threading.Thread(target=lambda: print('told:', serves()[:9]))\n"
                   "        looks.start()\n"
                   "        own.wait(3)\n"
                   "        looks.join()\n"
                   "        del own\n"
                   "        print('kept:', kept() is not None)\n"
                   "    waits()\n"));
  const SubprocessResult result = Python(PeerPython(), {script, "python", "p"}, With());
  EXPECT_THAT(result.out, AllOf(HasSubstr("told: {\"groups\""), HasSubstr("kept: False")));
}

TEST_F(TorchHookWithTorch, LeavesWhatWasCalledLastWhereTheProgramEndsByAnException) {
  const std::string last_words = socket() + ".last";
  EXPECT_THAT(Python(PeerPython(), {PythonScript("ends.py", kOneRank), "ping"}, With()),
              ExitsWith(0));
  EXPECT_FALSE(FileExists(last_words));
  std::filesystem::remove(socket());
  std::filesystem::remove(socket() + "p");
  const std::string script = PythonScript(
      "fails.py", absl::StrCat(kOneRank, "    raise RuntimeError('its peer has gone')\n"));
  const SubprocessResult result = Python(PeerPython(), {script, "ping"}, With());
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("RuntimeError: its peer has gone"));
  EXPECT_THAT(ReadFile(last_words), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\"version\"")));
}

TEST_F(TorchHookWithTorch, DoesNothingForAProgramThatOnlyImportsTorch) {
  const SubprocessResult result = Python(
      PeerPython(),
      {"-c", "import os, torch; print(os.path.exists(os.environ['MUSTER_TORCH_SERVER']))"}, With());
  EXPECT_EQ(result.out, "False\n");
}

TEST_F(TorchHookWithTorch, LeavesTheChildrenOfAWorkerAlone) {
  const std::string script = PythonScript(
      "train.py",
      absl::StrCat(kOneRank,
                   "    if not os.environ.get('IS_CHILD'):\n"
                   "        import subprocess\n"
                   "        inode = os.stat(os.environ['MUSTER_TORCH_SERVER']).st_ino\n"
                   "        child = subprocess.run([sys.executable, __file__, 'ping'],\n"
                   "                               env={**os.environ, 'IS_CHILD': '1'})\n"
                   "        same = os.stat(os.environ['MUSTER_TORCH_SERVER']).st_ino == inode\n"
                   "        print('child', child.returncode, 'same', same)\n"));
  const SubprocessResult result = Python(PeerPython(), {script, "ping"}, With());
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("child 0 same True\n"));
}

// One rank of each job starts the job within; the innermost trains.
TEST_F(TorchHookWithTorch, LeavesAJobWithinAJobWithinAJobToTrain) {
  const std::string script =
      PythonScript("level.py",
                   "import os, subprocess, sys\n"
                   "import torch, torch.distributed as dist\n"
                   "level, rest = int(sys.argv[1]), sys.argv[2:]\n"
                   "dist.init_process_group('gloo')\n"
                   "t = torch.ones(1); dist.all_reduce(t)\n"
                   "print('level', level, 'sum', int(t.item()), flush=True)\n"
                   "code = 0\n"
                   "if level and dist.get_rank() == 0:\n"
                   "    watch = ['--watch=off'] if level == 1 else []\n"
                   "    code = subprocess.run([*rest[:1], 'run', *watch, '--nproc_per_node=2',\n"
                   "        sys.argv[0], str(level - 1), *rest]).returncode\n"
                   "dist.barrier()\n"
                   "sys.exit(code)\n");
  const SubprocessResult result = Start({"run", "--nproc_per_node=2", script, "2", MusterBinary()},
                                        {{"PYTHON_EXEC", PeerPython()}})
                                      .Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  for (const char* level : {"level 2 sum 2", "level 1 sum 2", "level 0 sum 2"}) {
    EXPECT_THAT(result.out, HasSubstr(level));
  }
}

// Processes of the program's own, with a port of their own and the launcher's store turned off:
// started by each rank, and what a rank becomes by exec, twice.
TEST_F(TorchHookWithTorch, LeavesProcessesToTheStoreThatTheyHaveOfTheirOwn) {
  const std::string script = PythonScript(
      "stage.py",
      "import os, subprocess, sys\n"
      "import torch, torch.distributed as dist\n"
      "stage, how, *ports = sys.argv[1:]\n"
      "dist.init_process_group('gloo')\n"
      "t = torch.full((1,), 1. + dist.get_rank()); dist.all_reduce(t)\n"
      "port = os.environ['MASTER_PORT']\n"
      "print(stage, 'sum', int(t.item()), port in ports, flush=True)\n"
      "dist.destroy_process_group()\n"
      "if stage == 'third' or stage == 'child': sys.exit()\n"
      "env = dict(os.environ, MASTER_ADDR='127.0.0.1', MASTER_PORT=ports[0])\n"
      "env['TORCHELASTIC_USE_AGENT_STORE'] = 'False'\n"
      "if how == 'removed': del env['TORCHELASTIC_USE_AGENT_STORE']\n"
      "if stage == 'first':\n"
      "    child = [sys.executable, sys.argv[0], 'child', how, *ports]\n"
      "    code = subprocess.run(child, env=env).returncode\n"
      "    if code: sys.exit(code)\n"
      "env['MASTER_PORT'] = ports[1 if stage == 'first' else 2]\n"
      "following = 'second' if stage == 'first' else 'third'\n"
      "os.execve(sys.executable, [sys.executable, sys.argv[0], following, how, *ports], env)\n");
  for (const char* how : {"off", "removed"}) {
    const LoopbackPort ports[3];
    const SubprocessResult result =
        Start({"run", "--nproc_per_node=2", script, "first", how, absl::StrCat(ports[0].number()),
               absl::StrCat(ports[1].number()), absl::StrCat(ports[2].number())},
              {{"PYTHON_EXEC", PeerPython()}})
            .Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0)) << how;
    EXPECT_THAT(result.out, HasSubstr("first sum 3 False\n")) << how;
    for (const char* stage : {"child", "second", "third"}) {
      EXPECT_THAT(result.out, HasSubstr(absl::StrCat(stage, " sum 3 True\n"))) << how;
    }
  }
}

// The next stage of a worker meets at the launcher's store, where the keys of the first are.
TEST_F(TorchHookWithTorch, CountsTheGroupsOfAWorkerAcrossItsExec) {
  const std::string script =
      PythonScript("stage.py",
                   "import os, sys\n"
                   "import torch, torch.distributed as dist\n"
                   "stage = int(sys.argv[1])\n"
                   "dist.init_process_group('gloo')\n"
                   "t = torch.ones(1); dist.all_reduce(t)\n"
                   "print('stage', stage, 'sum', int(t.item()), flush=True)\n"
                   "dist.destroy_process_group()\n"
                   "if stage < 3:\n"
                   "    os.execv(sys.executable, [sys.executable, sys.argv[0], str(stage + 1)])\n");
  const SubprocessResult result =
      Start({"run", "--nproc_per_node=2", script, "1"}, {{"PYTHON_EXEC", PeerPython()}})
          .Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("stage 3 sum 2\n"));
}

TEST_F(TorchHookWithTorch, MakesRoomForAProgramsOwnWorkerServer) {
  const std::string script = PythonScript(
      "train.py",
      absl::StrCat("from torch.distributed.elastic.control_plane import worker_main\n", kOneRank,
                   "    with worker_main():\n"
                   "        os.environ['MUSTER_TORCH_SERVER'] = "
                   "os.environ['TORCH_WORKER_SERVER_SOCKET']\n"
                   "        print('own:', serves())\n"));
  Environment environment = With();
  environment["TORCH_WORKER_SERVER_SOCKET"] = directory() + "/own";
  const SubprocessResult result = Python(PeerPython(), {script, "ping"}, environment);
  EXPECT_THAT(result.out, AllOf(HasSubstr("after: pong\n"), HasSubstr("own: pong\n")));
}

// The hook is set up by muster run.
TEST_F(TorchHookWithTorch, ServesForEachWorkerOfAJobUnlessItIsNotWatched) {
  const std::string script = PythonScript("train.py", kOneRank);
  const SubprocessResult result =
      Start({"run", "--nproc_per_node=2", script, "ping"}, {{"PYTHON_EXEC", PeerPython()}})
          .Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("after: pong\n"));
  const SubprocessResult unwatched =
      Run({"run", "--watch=off", "--no_python", "/usr/bin/env"}, {{"PYTHON_EXEC", PeerPython()}});
  EXPECT_THAT(unwatched, ExitsWith(0));
  EXPECT_THAT(unwatched.out,
              AllOf(HasSubstr("MUSTER_TORCH_GROUP"), Not(HasSubstr("MUSTER_TORCH_SERVER"))));
}

}  // namespace
}  // namespace muster::testing
