#include "launcher/line/worker_command.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Command = std::vector<std::string>;

const std::string kMachineProgram(
    "\x7f"
    "ELF\1\0",
    6);

// A file system of names, made for one test.
class FakeFiles {
 public:
  FakeFiles& File(const std::string& path) { return Add(path, FileKind::kFile); }
  FakeFiles& Executable(const std::string& path, const std::string& head = kMachineProgram) {
    heads_[path] = head;
    return Add(path, FileKind::kExecutable);
  }
  FakeFiles& Directory(const std::string& path) { return Add(path, FileKind::kDirectory); }
  FakeFiles& Variable(const std::string& name, const std::string& value) {
    environment_[name] = value;
    return *this;
  }
  FakeFiles& InvokedAs(const std::string& path) {
    invoked_as_ = path;
    return *this;
  }

  absl::StatusOr<Command> Resolve(const Program& program) const {
    absl::StatusOr<WorkerProgram> resolved = ResolveWorkerCommand(program, Lookup());
    if (!resolved.ok()) return resolved.status();
    python = absl::StrCat(resolved->python, " ", resolved->python_why);
    python_on_path = resolved->python_on_path;
    return resolved->argv;
  }
  ProgramLookup Lookup() const {
    ProgramLookup lookup;
    lookup.kind_of = [this](const std::string& path) {
      const auto it = kinds_.find(path.rfind("./", 0) == 0 ? path.substr(2) : path);
      return it == kinds_.end() ? FileKind::kAbsent : it->second;
    };
    lookup.head_of = [this](const std::string& path) {
      const auto it = heads_.find(path);
      return it == heads_.end() ? std::string() : it->second;
    };
    lookup.list_directory = [this](const std::string& directory) {
      std::vector<std::string> names;
      for (const auto& [path, kind] : kinds_) {
        const size_t slash = path.rfind('/');
        const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
        if (parent == directory) names.push_back(path.substr(slash + 1));
      }
      return names;
    };
    lookup.current_directory = "/home/me";
    lookup.invoked_as = invoked_as_;
    lookup.binary_directory = "/opt/muster/bin";
    lookup.environment = environment_;
    return lookup;
  }

  Command Of(const Program& program) const {
    absl::StatusOr<Command> command = Resolve(program);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? *command : Command{};
  }
  Command Of(const std::string& script) const { return Of(Program{.name = script}); }
  std::string Message(const Program& program) const {
    const absl::Status status = Resolve(program).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  mutable std::string python;          // of the last one resolved, and why
  mutable std::string python_on_path;  // of the last one resolved

 private:
  FakeFiles& Add(const std::string& path, FileKind kind) {
    kinds_[path] = kind;
    return *this;
  }
  std::map<std::string, std::string> heads_;
  std::map<std::string, FileKind> kinds_ = {{"/usr/bin/python3", FileKind::kExecutable}};
  std::string invoked_as_ = "/opt/muster/bin/muster";
  EnvironmentMap environment_ = {{"PATH", "/usr/local/bin:/usr/bin"}};
};

constexpr auto kModule = Program::Kind::kModule;
constexpr auto kNoPython = Program::Kind::kNoPython;

TEST(ResolveWorkerCommand, RunsPythonFilesUnbuffered) {
  const FakeFiles files =
      FakeFiles().File("train.py").Executable("run.py").File("a.pyc").File("b.pyz");
  EXPECT_THAT(files.Of(Program{.name = "train.py", .args = {"--lr", "$$", ""}}),
              ElementsAre("/usr/bin/python3", "-u", "train.py", "--lr", "$$", ""));
  EXPECT_THAT(files.Of("run.py"), ElementsAre("/usr/bin/python3", "-u", "run.py"));
  EXPECT_THAT(files.Of("a.pyc"), ElementsAre("/usr/bin/python3", "-u", "a.pyc"));
  EXPECT_THAT(files.Of("b.pyz"), ElementsAre("/usr/bin/python3", "-u", "b.pyz"));
}

TEST(ResolveWorkerCommand, RunsModulesAndFilesThatAreNotExecutableWithPython) {
  EXPECT_THAT(FakeFiles().Of(Program{.kind = kModule, .name = "pkg.train", .args = {"x"}}),
              ElementsAre("/usr/bin/python3", "-u", "-m", "pkg.train", "x"));
  EXPECT_THAT(FakeFiles().File("script").Of("script"),
              ElementsAre("/usr/bin/python3", "-u", "script"));
}

TEST(ResolveWorkerCommand, RunsFoldersThatHaveAMain) {
  const FakeFiles files =
      FakeFiles().Directory("app").File("app/__main__.py").Directory("./data").Directory("d/e");
  EXPECT_THAT(files.Of("app"), ElementsAre("/usr/bin/python3", "-u", "app"));
  EXPECT_THAT(files.Message({.name = "d/e"}), HasSubstr("d/e is a folder without a __main__.py"));
}

TEST(ResolveWorkerCommand, ExecutesWhatIsExecutable) {
  EXPECT_THAT(FakeFiles().Executable("bin/train").Of("bin/train"), ElementsAre("bin/train"));
}

TEST(ResolveWorkerCommand, RunsAnExecutableTextOfPythonsUnbuffered) {
  for (const char* head : {"#!/usr/bin/python3\nimport os", "#!/usr/bin/env python\n",
                           "#! /usr/bin/env -S python3.11 -O\n",
                           "#!/usr/bin/env PYTHONPATH=. python3\n", "import torch\n", "#!python"}) {
    EXPECT_THAT(FakeFiles().Executable("train", head).Of("train"),
                ElementsAre("/usr/bin/python3", "-u", "train"))
        << head;
  }
  for (const char* head :
       {"#!/bin/sh\n", "#!/usr/bin/env bash\necho python", "#!/opt/pypy\n", ""}) {
    EXPECT_THAT(FakeFiles().Executable("train", head).Of("train"), ElementsAre("./train")) << head;
  }
}

TEST(ResolveWorkerCommand, LeavesAnInstalledProgramItsOwnInterpreter) {
  EXPECT_THAT(
      FakeFiles().Executable("/usr/bin/accelerate", "#!/venv/bin/python\n").Of("accelerate"),
      ElementsAre("/usr/bin/accelerate"));
}

TEST(ResolveWorkerCommand, TellsWhichPythonAndWhy) {
  FakeFiles files;
  files.File("t.py").Of("t.py");
  EXPECT_EQ(files.python, "/usr/bin/python3 the first on PATH");
  files.Executable("/venv/bin/python3").Variable("VIRTUAL_ENV", "/venv").Of("t.py");
  EXPECT_EQ(files.python, "/venv/bin/python3 VIRTUAL_ENV");
  files.Executable("/env/bin/torchrun")
      .Executable("/env/bin/python")
      .InvokedAs("/env/bin/torchrun");
  files.Of("t.py");
  EXPECT_EQ(files.python, "/env/bin/python the one beside /env/bin/torchrun");
  files.Variable("PYTHON_EXEC", "/env/bin/python").Of("t.py");
  EXPECT_EQ(files.python, "/env/bin/python PYTHON_EXEC");
}

TEST(ResolveWorkerCommand, PrefersAFileOfTheCurrentFolderToPath) {
  EXPECT_THAT(FakeFiles().Executable("true").Executable("/usr/bin/true").Of("true"),
              ElementsAre("./true"));
}

TEST(ResolveWorkerCommand, LooksForABareNameBesideTheBinaryAndThenOnPath) {
  FakeFiles files;
  files.Executable("/usr/bin/muster-train").Executable("/usr/bin/nvidia-smi");
  EXPECT_THAT(files.Of("nvidia-smi"), ElementsAre("/usr/bin/nvidia-smi"));
  EXPECT_THAT(files.Of("muster-train"), ElementsAre("/usr/bin/muster-train"));
  files.Executable("/opt/muster/bin/muster-train");
  EXPECT_THAT(files.Of("muster-train"), ElementsAre("/opt/muster/bin/muster-train"));
}

TEST(ResolveWorkerCommand, PassesOverAFolderThatHappensToHaveTheNameOfAProgram) {
  EXPECT_THAT(FakeFiles().Directory("pytest").Executable("/usr/bin/pytest").Of("pytest"),
              ElementsAre("/usr/bin/pytest"));
}

TEST(ResolveWorkerCommand, NamesTheNearestFileOfAMissingScript) {
  const FakeFiles files = FakeFiles().File("train.py").File("src/main.py");
  EXPECT_EQ(files.Message({.name = "trian.py"}),
            "there is no file trian.py in /home/me; did you mean train.py?");
  EXPECT_EQ(files.Message({.name = "src/mian.py"}),
            "there is no file src/mian.py in /home/me; did you mean src/main.py?");
  EXPECT_EQ(files.Message({.name = "/abs/x.py"}), "there is no file /abs/x.py");
}

TEST(ResolveWorkerCommand, SaysWhereABareNameWasLookedFor) {
  EXPECT_EQ(FakeFiles().Message({.name = "frobnicate"}),
            "there is no file frobnicate here and no program frobnicate beside muster or on PATH");
}

TEST(ResolveWorkerCommand, FindsNoPythonProgramsOnPathOnly) {
  const FakeFiles files =
      FakeFiles().Executable("train").Executable("/usr/bin/echo").File("data/x");
  EXPECT_THAT(files.Of(Program{.kind = kNoPython, .name = "echo", .args = {"-n"}}),
              ElementsAre("/usr/bin/echo", "-n"));
  EXPECT_THAT(files.Of(Program{.kind = kNoPython, .name = "./train"}), ElementsAre("./train"));
  EXPECT_THAT(files.Message({.kind = kNoPython, .name = "train"}), HasSubstr("write ./train"));
  EXPECT_THAT(files.Message({.kind = kNoPython, .name = "data/x"}), HasSubstr("is not executable"));
}

TEST(ResolveWorkerCommand, RunsAPathScriptWithPythonEvenIfItIsExecutable) {
  EXPECT_THAT(FakeFiles().Executable("run").Of(Program{.name = "run", .run_path = true}),
              ElementsAre("/usr/bin/python3", "-u", "run"));
}

TEST(ResolveWorkerCommand, PrefersPythonExec) {
  FakeFiles files;
  files.File("t.py").Executable("/conda/python").Variable("PYTHON_EXEC", "/conda/python");
  files.Variable("VIRTUAL_ENV", "/venv").Executable("/venv/bin/python3");
  EXPECT_EQ(files.Of("t.py").front(), "/conda/python");
  EXPECT_EQ(FakeFiles().File("t.py").Variable("PYTHON_EXEC", "python3").Of("t.py").front(),
            "/usr/bin/python3");
}

TEST(ResolveWorkerCommand, RefusesAPythonExecThatIsNotThere) {
  EXPECT_THAT(
      FakeFiles().File("t.py").Variable("PYTHON_EXEC", "/no/python").Message({.name = "t.py"}),
      HasSubstr("PYTHON_EXEC=/no/python is not an executable"));
}

TEST(ResolveWorkerCommand, TakesThePythonBesideALinkToUs) {
  FakeFiles files;
  files.File("t.py").Executable("/env/bin/torchrun").Executable("/env/bin/python");
  files.Variable("VIRTUAL_ENV", "/venv").Executable("/venv/bin/python3");
  EXPECT_EQ(files.InvokedAs("/env/bin/torchrun").Of("t.py").front(), "/env/bin/python");
}

TEST(ResolveWorkerCommand, PrefersTheVirtualEnvironmentToThePythonBesideOurBinary) {
  FakeFiles files;
  files.File("t.py").Executable("/opt/muster/bin/python3");
  files.Variable("VIRTUAL_ENV", "/venv").Executable("/venv/bin/python3");
  EXPECT_EQ(files.Of("t.py").front(), "/venv/bin/python3");
}

TEST(ResolveWorkerCommand, TakesTheCondaEnvironmentThatWasActivatedOverAVirtualOne) {
  FakeFiles files;
  files.File("t.py").Executable("/conda/bin/python").Executable("/conda/bin/python3");
  files.Variable("VIRTUAL_ENV", "/venv");
  files.Executable("/venv/bin/python").Executable("/venv/bin/python3");
  files.Variable("CONDA_PREFIX", "/conda").Variable("PATH", "/conda/bin:/venv/bin:/usr/bin");
  EXPECT_EQ(files.Of("t.py").front(), "/conda/bin/python3");
  EXPECT_EQ(files.python_on_path, "");
  files.Variable("PATH", "/venv/bin:/conda/bin:/usr/bin");
  EXPECT_EQ(files.Of("t.py").front(), "/venv/bin/python3");
  EXPECT_EQ(files.python_on_path, "");
}

TEST(ResolveWorkerCommand, NamesThePythonOfPathWhereItTookAnother) {
  FakeFiles files;
  files.File("t.py").Variable("VIRTUAL_ENV", "/venv").Executable("/venv/bin/python3");
  EXPECT_EQ(files.Of("t.py").front(), "/venv/bin/python3") << "sudo and cron have another PATH";
  EXPECT_EQ(files.python_on_path, "/usr/bin/python3");
  files.Executable("/usr/local/bin/python").Of("t.py");
  EXPECT_EQ(files.python_on_path, "/usr/local/bin/python");
  files.Variable("PYTHON_EXEC", "/venv/bin/python3").Of("t.py");
  EXPECT_EQ(files.python_on_path, "") << "somebody has named it";
}

TEST(ResolveWorkerCommand, TakesThePythonThatPipInstalledUsFor) {
  FakeFiles files;
  files.File("t.py").Executable("/opt/muster/bin/python3");
  files.Variable("VIRTUAL_ENV", "/venv").Executable("/venv/bin/python3");
  files.Directory("/opt/muster/lib/python3.11");
  EXPECT_EQ(files.Of("t.py").front(), "/venv/bin/python3") << "another program's packages";
  files.File("/opt/muster/lib/python3.11/site-packages/muster/__init__.py");
  EXPECT_EQ(files.Of("t.py").front(), "/opt/muster/bin/python3");
  EXPECT_THAT(files.python, HasSubstr("pip installed muster"));
}

TEST(ResolveWorkerCommand, TakesTheVersionThatPipInstalledUsForWhereThereAreSeveral) {
  FakeFiles files;
  files.File("t.py").Executable("/opt/muster/bin/python3").Executable("/opt/muster/bin/python3.13");
  files.Directory("/opt/muster/lib/python3.11");
  files.File("/opt/muster/lib/python3.11/dist-packages/muster/__init__.py");
  EXPECT_EQ(files.Of("t.py").front(), "/usr/bin/python3") << "3.13 has other packages";
  EXPECT_THAT(files.python, HasSubstr("the first on PATH"));
  files.Executable("/opt/muster/bin/python3.11");
  EXPECT_EQ(files.Of("t.py").front(), "/opt/muster/bin/python3.11");
}

TEST(ResolveWorkerCommand, ExplainsAMissingPython) {
  EXPECT_THAT(FakeFiles().File("t.py").Variable("PATH", "/none").Message({.name = "t.py"}),
              HasSubstr("there is no python3 on PATH; set PYTHON_EXEC"));
}

Command CheckOf(const FakeFiles& files, const std::string& program) {
  const absl::StatusOr<Command> command = ResolveNodeCheck(program, files.Lookup());
  return command.ok() ? *command : Command{std::string(command.status().message())};
}

TEST(ResolveNodeCheck, ExecutesAFileItselfAlsoOneOfPython) {
  EXPECT_THAT(
      CheckOf(FakeFiles().Executable("/etc/check.py", "#!/usr/bin/env python3\n"), "/etc/check.py"),
      ElementsAre("/etc/check.py"));
}

TEST(ResolveNodeCheck, LooksForABareNameBesideMusterAndOnPath) {
  FakeFiles files;
  files.Executable("/usr/bin/dcgmi");
  EXPECT_THAT(CheckOf(files, "dcgmi"), ElementsAre("/usr/bin/dcgmi"));
  files.Executable("/opt/muster/bin/dcgmi");
  EXPECT_THAT(CheckOf(files, "dcgmi"), ElementsAre("/opt/muster/bin/dcgmi"));
}

TEST(ResolveNodeCheck, TakesMusterForTheDoctorWhereThereIsNoLink) {
  FakeFiles files;
  files.Executable("/opt/muster/bin/muster");
  EXPECT_THAT(CheckOf(files, "muster-doctor"), ElementsAre("/opt/muster/bin/muster", "doctor"));
  files.Executable("/usr/bin/muster-doctor");
  EXPECT_THAT(CheckOf(files, "muster-doctor"), ElementsAre("/usr/bin/muster-doctor"));
}

TEST(ResolveNodeCheck, SaysWhatWouldDo) {
  FakeFiles files;
  files.File("check").File("/etc/check").File("/etc/chek.sh").Directory("/etc");
  EXPECT_THAT(CheckOf(files, "chuck"),
              ElementsAre("--node_check=chuck: there is no program of this name beside muster or "
                          "on PATH; give its path, or --node_check=muster-doctor"));
  EXPECT_THAT(CheckOf(files, "check"),
              ElementsAre(HasSubstr("write ./check for the file in this folder")));
  EXPECT_THAT(CheckOf(files, "/etc/check"),
              ElementsAre("--node_check=/etc/check: it is not executable; chmod +x /etc/check "
                          "makes it so"));
  EXPECT_THAT(CheckOf(files, "/etc"), ElementsAre(HasSubstr("it is a folder")));
  EXPECT_THAT(CheckOf(files, "/etc/check.sh"),
              ElementsAre(HasSubstr("there is no file /etc/check.sh; did you mean /etc/chek.sh?")));
}

}  // namespace
}  // namespace muster::launcher
