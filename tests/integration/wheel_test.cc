// The wheels that pip installs, made from this build: in a virtual environment of their own, and in
// the folders of a system and of a user, as Debian and Ubuntu lay them out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kPipPatience = absl::Seconds(250);
constexpr char kPython[] = "/usr/bin/python3";

constexpr char kShowsPython[] =
    "import os, sys, muster_job, muster_marks\n"
    "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'in', sys.prefix)\n"
    "sys.exit('--fail-once' in sys.argv and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n";

// Reads each module of the wheels as the oldest Python that their metadata admits would, and prints
// its name; "admits 3.8" follows those of a wheel.
constexpr char kReadsModules[] = R"py(
import ast, re, sys, zipfile
for path in sys.argv[1:]:
    wheel = zipfile.ZipFile(path)
    metadata, = [name for name in wheel.namelist() if name.endswith('.dist-info/METADATA')]
    oldest = re.search(r'^Requires-Python: >=(3)\.(\d+)$', wheel.read(metadata).decode(), re.M)
    for name in wheel.namelist():
        if name.endswith(('.py', '.pth')):
            ast.parse(wheel.read(name), name, feature_version=tuple(map(int, oldest.groups())))
            print(name)
    print('admits', '.'.join(oldest.groups()))
)py";

// Makes ROOT/usr of the interpreter that runs it: a copy of the program, and links to its modules.
// For pip it is as Ubuntu 22.04's: no marker says that something else manages it, and packages go
// to /usr/local. Debian's interpreter does that by itself; another is given Debian's scheme.
constexpr char kMakesRoot[] = R"py(
import os, shutil, sys, sysconfig
usr, name = sys.argv[1] + '/usr', 'python%d.%d' % sys.version_info[:2]
modules, own = sysconfig.get_path('stdlib'), {'EXTERNALLY-MANAGED', '__pycache__'}
os.makedirs(usr + '/bin')
os.makedirs(usr + '/lib/' + name)
shutil.copy(os.path.realpath(sys.executable), usr + '/bin/' + name)
os.symlink(name, usr + '/bin/python3')
if os.path.isdir('/usr/lib/python3') and modules.startswith('/usr/lib/'):
    os.symlink('/usr/lib/python3', usr + '/lib/python3')
if 'posix_local' not in sysconfig.get_scheme_names():
    own |= {'sysconfig.py', 'sitecustomize.py'}
    with open(modules + '/sysconfig.py') as file:
        text = file.read()
    scheme = dict(sysconfig._INSTALL_SCHEMES['posix_prefix'], scripts='{base}/local/bin',
                  data='{base}/local')
    for kind in 'purelib', 'platlib':
        scheme[kind] = '{base}/local/lib/python{py_version_short}/dist-packages'
    for old, new in (("'posix_home': {", f"'posix_local': {scheme!r}, 'posix_home': {{"),
                     ("'prefix': 'posix_prefix'", "'prefix': 'posix_local'")):
        assert old in text, old
        text = text.replace(old, new)
    with open(f'{usr}/lib/{name}/sysconfig.py', 'w') as file:
        file.write(text)
    with open(f'{usr}/lib/{name}/sitecustomize.py', 'w') as file:
        file.write("import site, sysconfig; site.addsitedir(sysconfig.get_path('purelib'))")
for file in set(os.listdir(modules)) - own:
    os.symlink(f'{modules}/{file}', f'{usr}/lib/{name}/{file}')
print(name)
)py";

// The system's interpreter for "", else one of that version ("3.10"), of the system or of pyenv;
// empty if there is none.
std::string FindPython(const std::string& version) {
  if (version.empty()) return kPython;
  const std::string name = "/bin/python" + version;
  for (const char* prefix : {"/usr", "/usr/local"}) {
    if (FileExists(prefix + name)) return prefix + name;
  }
  const char* home = getenv("HOME");
  std::error_code error;
  for (std::filesystem::directory_iterator
           entry(absl::StrCat(home == nullptr ? "" : home, "/.pyenv/versions"), error),
       end;
       !error && entry != end; entry.increment(error)) {
    if (FileExists(entry->path().string() + name)) return entry->path().string() + name;
  }
  return "";
}

class Wheel : public JobTest {
 protected:
  // A tool of this machine, with this test's own PATH for it.
  SubprocessResult RunTool(const Arguments& argv) const {
    return StartProgram(argv, {{"PATH", "/usr/local/bin:/usr/bin:/bin"}}).Wait(kPipPatience);
  }
  SubprocessResult RunPip(const Arguments& arguments) const {
    return RunTool(Arguments{python_, "-m", "pip", "--disable-pip-version-check", "--no-input"} +
                   arguments);
  }
  // False if this Python makes none with pip.
  bool MakesEnvironment(const std::string& python = kPython) const {
    RunTool({python, "-m", "venv", env_});
    return FileExists(env_ + "/bin/pip");
  }
  // Returns the path of the wheel "launch" or "train".
  std::string MakeWheel(const std::string& folder, const std::string& name = "launch") const {
    const SubprocessResult made =
        RunTool({kPython, absl::StrCat(kSourceDirectory, "/deploy/wheel/", name, "_wheel.py"),
                 absl::StrCat("--build=", Built("..")), "--out=" + folder});
    EXPECT_THAT(made, ExitsWith(0));
    return std::string(absl::StripAsciiWhitespace(made.out));
  }
  // The same, made once for all tests.
  std::string WheelOf(const std::string& name) const {
    static const TemporaryDirectory folder;
    static std::map<std::string, std::string> made;
    std::string& wheel = made[name];
    if (wheel.empty()) wheel = MakeWheel(folder.path(), name);
    return wheel;
  }
  SubprocessResult RunInstalled(const std::string& program, const Arguments& arguments,
                                const Environment& changes = {}) const {
    Environment environment = changes;
    Arguments argv = {programs_ + "/" + program};
    if (!path_.empty()) {
      environment.emplace("PATH", path_);
      argv = {"/usr/bin/env", program};
    }
    return StartProgram(argv + arguments, environment).Wait(kPipPatience);
  }

  void ExpectThatJobsRunInItsInterpreter() const {
    const std::string says = absl::StrCat("rank 1 of 2 in ", prefix_, "\n");
    for (const SubprocessResult& result :
         {RunInstalled("muster",
                       {"--nproc_per_node=2", "--max_restarts=1", script_, "--fail-once"}),
          RunInstalled("python3", {"-m", "muster", "--nproc_per_node=2", script_})}) {
      EXPECT_THAT(result, ExitsWith(0));
      EXPECT_THAT(result.out, HasSubstr(says));
    }
  }
  void ExpectThatADaemonServesTwoNodes() const {
    const std::string port_file = directory() + "/port";
    Subprocess daemon =
        StartProgram({env_ + "/bin/musterd", "--listen=127.0.0.1:0", "--port_file=" + port_file,
                      "--state_dir=" + directory() + "/state"});
    ASSERT_TRUE(WaitUntil([&] { return absl::EndsWith(ReadFile(port_file), "\n"); }));
    const std::string endpoint =
        absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(ReadFile(port_file)));
    std::vector<Subprocess> agents;
    for (const int node : {1, 2}) {
      agents.push_back(StartProgram(
          {env_ + "/bin/muster", "--nnodes=2", "--nproc_per_node=1", "--max_restarts=1",
           "--rdzv_backend=c10d", "--rdzv_id=wheel", "--rdzv_endpoint=" + endpoint,
           absl::StrCat("--local_addr=127.0.0.", node), script_, "--fail-once"}));
    }
    for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kPipPatience), ExitsWith(0));
    EXPECT_EQ(ReadFile(absl::StrCat("/proc/", daemon.pid(), "/comm")), "musterd\n");
    daemon.Signal(SIGTERM);
    EXPECT_THAT(daemon.Wait(), ExitsWith(0));
  }
  void ExpectThatAVariableTakesTorchrunOver() const {
    const Arguments asks = {"-c", "import sys; print('muster' in sys.modules)"};
    EXPECT_EQ(RunInstalled("python3", asks).out, "False\n");
    EXPECT_EQ(RunInstalled("python3", asks, {{"MUSTER_PRELOAD", "0"}}).out, "False\n");
    EXPECT_EQ(RunInstalled("python3", asks, {{"MUSTER_PRELOAD", "1"}}).out, "True\n");
  }
  void ExpectThatProgramsFindItsModules() const {
    EXPECT_EQ(RunInstalled("python3", {"-c",
                                       "import muster_job, muster_marks, muster.marks, "
                                       "muster.job as job; print(job.should_stop(1))"})
                  .out,
              "False\n");
  }

  // Expects it with the libraries of its wheel, and C++'s of this system.
  void ExpectThatTwoRanksTrain() const {
    const std::string libraries = RunTool({"/usr/bin/ldd", programs_ + "/muster-train"}).out;
    for (const char* library : {"libdnnl.so.2", "libgloo.so.0", "libhiredis.so"}) {
      EXPECT_THAT(libraries, HasSubstr(absl::StrCat(programs_, "/../lib/muster/", library)));
    }
    EXPECT_THAT(libraries, Not(HasSubstr("/lib/muster/libstdc++")));
    std::string text;
    for (int line = 0; line < 200; ++line) {
      absl::StrAppend(&text, "Line ", line, " of what they learn.\n");
    }
    WriteFile(directory() + "/text", text);
    const SubprocessResult result =
        RunInstalled("muster",
                     {"--nproc_per_node=2", "muster-train", "--data=" + directory() + "/text",
                      "--num_layers=1", "--num_heads=2", "--hidden_size=32", "--sequence_length=16",
                      "--batch_size=2", "--steps=2"},
                     {{"PATH", path_.empty() ? programs_ + ":/usr/bin:/bin" : path_}});
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr("loss"));
  }

  // Pip takes it for Python 3.10 and glibc 2.35, which are Ubuntu 22.04's.
  void ExpectThatUbuntuTakes(const std::string& wheel) const {
    const std::string machine(absl::StripAsciiWhitespace(RunTool({"/bin/uname", "-m"}).out));
    Arguments platforms;
    for (int minor = 17; minor <= 35; ++minor) {
      platforms.push_back(absl::StrCat("--platform=manylinux_2_", minor, "_", machine));
    }
    EXPECT_THAT(RunPip(Arguments{"install", "--dry-run", "--no-index", "--no-deps", "--target=x",
                                 "--only-binary=:all:", "--implementation=cp", "--abi=cp310",
                                 "--python-version=3.10", wheel} +
                       platforms),
                ExitsWith(0));
  }

  const std::string env_ = directory() + "/env";
  // Where it is installed, in the virtual environment unless a test says otherwise.
  std::string prefix_ = env_;  // of the interpreter
  std::string python_ = env_ + "/bin/python3";
  std::string programs_ = env_ + "/bin";
  std::string path_;  // by which users find programs and interpreter; empty: they name them
  const std::string script_ = PythonScript("train.py", kShowsPython);
};

TEST_F(Wheel, IsInstalledRunsJobsAndLeavesNothingBehind) {
  if (!MakesEnvironment()) GTEST_SKIP() << "python3 -m venv makes no pip here";
  const std::vector<std::string> before = FilesBelow(env_);
  ExpectThatUbuntuTakes(WheelOf("launch"));
  ASSERT_THAT(RunPip({"install", "--no-index", WheelOf("launch")}), ExitsWith(0));
  EXPECT_THAT(FilesBelow(env_), AllOf(Contains("bin/muster"), Contains("bin/musterd"),
                                      Contains(EndsWith("licenses/libgrpc-dev.txt")),
                                      Contains(EndsWith("sboms/muster.cdx.json")),
                                      Contains("share/man/man1/muster.1"),
                                      Contains("share/fish/vendor_completions.d/musterd.fish"),
                                      Contains("share/zsh/site-functions/_muster")));
  ExpectThatJobsRunInItsInterpreter();
  ExpectThatADaemonServesTwoNodes();
  ExpectThatAVariableTakesTorchrunOver();
  ExpectThatProgramsFindItsModules();
  ASSERT_THAT(RunPip({"uninstall", "--yes", "muster-launch"}), ExitsWith(0));
  EXPECT_EQ(FilesBelow(env_), before);
}

TEST_F(Wheel, OfTheTrainerBringsItsLibrariesAndLeavesNothingBehind) {
  if (!MakesEnvironment()) GTEST_SKIP() << "python3 -m venv makes no pip here";
  const std::vector<std::string> before = FilesBelow(env_);
  ExpectThatUbuntuTakes(WheelOf("train"));
  ASSERT_THAT(RunPip({"install", "--no-index", WheelOf("launch"), WheelOf("train")}), ExitsWith(0));
  ExpectThatTwoRanksTrain();
  ASSERT_THAT(RunPip({"uninstall", "--yes", "muster-launch", "muster-train"}), ExitsWith(0));
  EXPECT_EQ(FilesBelow(env_), before);
}

TEST_F(Wheel, HasModulesThatTheOldestPythonItAdmitsCanRead) {
  const SubprocessResult read =
      RunTool({kPython, "-c", kReadsModules, WheelOf("launch"), WheelOf("train")});
  ASSERT_THAT(read, ExitsWith(0));
  for (const char* name : {"muster/survive.py\n", "muster_job.py\n", "muster_launch.pth\n"}) {
    EXPECT_THAT(read.out, HasSubstr(name));
  }
}

TEST_F(Wheel, RunsJobsUnderTheOldestPythonThatItAdmits) {
  const SubprocessResult read = RunTool({kPython, "-c", kReadsModules, WheelOf("launch")});
  ASSERT_THAT(read, ExitsWith(0));
  const std::vector<std::string> words = absl::StrSplit(read.out, ' ');
  const std::string oldest(absl::StripAsciiWhitespace(words.back()));
  const std::string python = FindPython(oldest);
  if (python.empty()) GTEST_SKIP() << "there is no Python " << oldest;
  if (!MakesEnvironment(python)) GTEST_SKIP() << python << " -m venv makes no pip here";
  ASSERT_THAT(RunPip({"install", "--no-index", WheelOf("launch")}), ExitsWith(0));
  ExpectThatJobsRunInItsInterpreter();
  ExpectThatAVariableTakesTorchrunOver();
  ExpectThatProgramsFindItsModules();
}

// A system's interpreter and one of the two places that its pip installs in.
struct Scheme {
  std::string name;
  std::string python;   // see FindPython
  bool is_of_one_user;  // ~/.local, else /usr/local
};
void PrintTo(const Scheme& scheme, std::ostream* out) { *out << scheme.name; }

class WheelOfASystem : public Wheel, public ::testing::WithParamInterface<Scheme> {
 protected:
  // False where there is no such interpreter with pip.
  bool MakesSystem() {
    const std::string python = FindPython(GetParam().python), root = directory() + "/root";
    if (python.empty()) return false;
    const SubprocessResult made = RunTool({python, "-c", kMakesRoot, root});
    EXPECT_THAT(made, ExitsWith(0));
    prefix_ = root + "/usr";
    python_ = prefix_ + "/bin/python3";
    const std::string name(absl::StripAsciiWhitespace(made.out));
    files_ = GetParam().is_of_one_user ? directory() + "/home/.local" : prefix_ + "/local";
    packages_ = absl::StrCat("lib/", name,
                             GetParam().is_of_one_user ? "/site-packages/" : "/dist-packages/");
    programs_ = files_ + "/bin";
    path_ = absl::StrCat(programs_, ":", prefix_, "/bin:/usr/bin:/bin");
    return RunPip({"--version"}).exit_code == 0;
  }

  std::string files_;     // of what pip installs
  std::string packages_;  // a folder of those
};

TEST_P(WheelOfASystem, IsFoundByPathRunsJobsAndLeavesNothingBehind) {
  if (!MakesSystem()) GTEST_SKIP() << GetParam().name << ": there is no such Python with pip";
  Arguments install = {"install", "--no-index", WheelOf("launch"), WheelOf("train")};
  if (GetParam().is_of_one_user) install.push_back("--user");
  ASSERT_THAT(RunPip(install), ExitsWith(0));
  EXPECT_THAT(
      FilesBelow(files_),
      AllOf(Contains("bin/muster"), Contains("bin/musterd"), Contains("bin/muster-train"),
            Contains("lib/muster/libdnnl.so.2"), Contains("share/man/man1/muster.1"),
            Contains(packages_ + "muster/__init__.py"), Contains(packages_ + "muster_job.py"),
            Contains(packages_ + "muster_launch.pth")));
  EXPECT_THAT(RunInstalled("muster", {"--version"}).out, StartsWith("muster "));
  ExpectThatJobsRunInItsInterpreter();
  ExpectThatAVariableTakesTorchrunOver();
  ExpectThatProgramsFindItsModules();
  ExpectThatTwoRanksTrain();
  // A shell that is older than ~/.local/bin does not have it on PATH.
  path_ = prefix_ + "/bin:/usr/bin:/bin";
  EXPECT_THAT(RunInstalled("python3", {"-m", "muster", script_}), ExitsWith(0));
  ASSERT_THAT(RunPip({"uninstall", "--yes", "muster-launch", "muster-train"}), ExitsWith(0));
  EXPECT_THAT(FilesBelow(files_), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Schemes, WheelOfASystem,
                         ::testing::Values(Scheme{"AllUsersOfDebian", "", false},
                                           Scheme{"OneUserOfDebian", "", true},
                                           Scheme{"AllUsersOfPython310", "3.10", false},
                                           Scheme{"OneUserOfPython310", "3.10", true}),
                         [](const ::testing::TestParamInfo<Scheme>& info) {
                           return info.param.name;
                         });

// What the build asks each time; --version and the wheel's own follow from it.
TEST_F(Wheel, NamesTheCommitOfItsBuildWhereTheTreeIsThatCommit) {
  const std::string tree = directory() + "/tree";
  const auto run = [&](const std::string& commands) {
    return RunTool({"/bin/sh", "-ec",
                    absl::StrCat("git() { command git -c user.name=a -c user.email=a@b \"$@\"; }\n"
                                 "build() { cmake -Dout=",
                                 Out("built.cc"), " -Dtree=", tree, " -P ", kSourceDirectory,
                                 "/deploy/write_commit.cmake; }\ncd ", tree, "\n", commands)});
  };
  std::filesystem::create_directories(tree);
  if (run("git init -q . && cmake --version").exit_code != 0) GTEST_SKIP() << "no git or no cmake";
  for (const char* change : {"echo a > a", "echo b > a"}) {
    const SubprocessResult commit =
        run(absl::StrCat(change, "; git add a; git commit -qm m; build; git rev-parse HEAD"));
    ASSERT_THAT(commit, ExitsWith(0));
    EXPECT_THAT(ReadOut("built.cc"),
                HasSubstr(absl::StrCat("= \"", commit.out.substr(0, 40), "\"")));
  }
  const auto time = std::filesystem::last_write_time(Out("built.cc"));
  ASSERT_THAT(run("build"), ExitsWith(0));
  EXPECT_EQ(std::filesystem::last_write_time(Out("built.cc")), time) << "it says so already";
  ASSERT_THAT(run("echo c > a; build"), ExitsWith(0));
  EXPECT_THAT(ReadOut("built.cc"), HasSubstr("= \"\""));
}

TEST_F(Wheel, IsCalledByTheCommitThatItsProgramNames) {
  const std::string described =
      absl::StrCat("muster 0.1.0\nbuilt from commit ", std::string(40, 'a'), " by GNU 12\n");
  EXPECT_EQ(RunTool({kPython, "-c",
                     "import sys; sys.path.insert(0, sys.argv[1]); import parts\n"
                     "print(parts.version_of(sys.argv[2]))",
                     absl::StrCat(kSourceDirectory, "/deploy/wheel"), described})
                .out,
            absl::StrCat("0.1.0+g", std::string(12, 'a'), "\n"));
}

TEST_F(Wheel, HasTheSameBytesAgain) {
  const std::string first = ReadFile(WheelOf("launch"));
  EXPECT_THAT(first, Not(IsEmpty()));
  EXPECT_TRUE(first == ReadFile(MakeWheel(Out("second"))));
}

// What keeps its tag true: glibc of the tag's version starts it, and libraries travel with it.
TEST_F(Wheel, IsNotMadeOfAProgramThatNeedsMoreThanItsTagPromises) {
  const SubprocessResult checked =
      RunTool({kPython, "-c",
               "import sys; sys.path.insert(0, sys.argv[1]); import parts\n"
               "parts.NEWEST['GLIBC'] = (2, 2)\n"
               "parts.check_runs_on_older_systems('it', parts.content_of(sys.argv[2]))",
               absl::StrCat(kSourceDirectory, "/deploy/wheel"),
               absl::StrCat(kBinaryDirectory, "/muster-train")});
  EXPECT_THAT(checked, ExitsWith(1));
  EXPECT_THAT(checked.err, AllOf(HasSubstr("it would not start on every system of manylinux_2_"),
                                 HasSubstr("libdnnl.so.2"), HasSubstr("GLIBC_2.3")));
}

// A service as its unit file starts it, but for the places that systemd makes.
class Unit : public JobTest {
 protected:
  Arguments CommandOf(const std::string& unit,
                      const std::vector<std::pair<absl::string_view, std::string>>& places) const {
    for (absl::string_view line :
         absl::StrSplit(ReadFile(absl::StrCat(kSourceDirectory, "/deploy/systemd/", unit)), '\n')) {
      if (!absl::ConsumePrefix(&line, "ExecStart=/usr/local/bin/")) continue;
      Arguments command = absl::StrSplit(absl::StrReplaceAll(line, places), ' ');
      command[0] = absl::StrCat(kBinaryDirectory, "/", command[0]);
      return command;
    }
    return {};
  }
};

TEST_F(Unit, OfTheDaemonStartsIt) {
  WriteFile(directory() + "/token", std::string(64, 'a'));
  std::filesystem::permissions(directory() + "/token", std::filesystem::perms::owner_read);
  Subprocess daemon =
      StartProgram(CommandOf("musterd.service", {{"[::]:29400", "127.0.0.1:0"},
                                                 {"${STATE_DIRECTORY}", directory() + "/state"},
                                                 {"${CREDENTIALS_DIRECTORY}", directory()}}));
  EXPECT_TRUE(daemon.WaitForOutput("musterd: listening on 127.0.0.1:"));
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(), ExitsWith(0));
}

TEST_F(Unit, OfAnAgentRunsALine) {
  const SubprocessResult result =
      StartProgram(
          CommandOf("muster-agent@.service",
                    {{"%i", "a_job"}, {"$MUSTER_LINE", "--nproc_per_node=1 --no_python true"}}))
          .Wait();
  EXPECT_THAT(result, ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
