// agent/watch/torch_hook.py in real Pythons: where the environment of `deploy/dev deps --peers` is,
// with PyTorch too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
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

class TorchHook : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    hook_ = absl::StrCat(directory(), "/hook");
    std::filesystem::create_directories(hook_);
    WriteFile(hook_ + "/sitecustomize.py",
              ReadFile(absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/agent/watch/torch_hook.py")));
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

TEST_F(TorchHookWithTorch, ServesOnceTheFirstProcessGroupIsMade) {
  const std::string script = PythonScript("train.py", kOneRank);
  const SubprocessResult result = Python(PeerPython(), {script, "ping"}, With());
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "before: FileNotFoundError\nafter: pong\n");
  EXPECT_THAT(result.err, Not(HasSubstr("WorkerServer")));
}

TEST_F(TorchHookWithTorch, TellsTheRanksOfEachGroupAndWhereTheMainThreadIs) {
  const std::string script = PythonScript("train.py", kOneRank);
  const SubprocessResult result = Python(PeerPython(), {script, "python", "p"}, With());
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("{\"groups\": {\"0\": [0], \"1\": [0]}, \"stack\": [[\"serves\", "),
                    AnyOf(HasSubstr("\"calls\": \"sendall\""), HasSubstr("\"calls\": \"recv\""))));
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
