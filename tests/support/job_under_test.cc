#include "tests/support/job_under_test.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

// The name must not be MUSTER_…: an agent withholds such names from its workers.
constexpr char kMarkName[] = "JOB_UNDER_TEST";

std::string ProgramUnderTest(const char* name) {
  const char* const directory = getenv("MUSTER_TEST_PROGRAMS");
  return absl::StrCat(directory == nullptr ? kBinaryDirectory : directory, "/", name);
}

}  // namespace

std::string MusterBinary() { return ProgramUnderTest("muster"); }
std::string MusterdBinary() { return ProgramUnderTest("musterd"); }
std::string MusterTrainBinary() { return ProgramUnderTest("muster-train"); }

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

JobTest::JobTest() {
  std::filesystem::create_directories(directory_.File("home"));
  std::filesystem::create_directories(directory_.File("tmp"));
  std::filesystem::create_directories(out());
  environment_ = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                  {"HOME", directory_.File("home")},
                  {"TMPDIR", directory_.File("tmp")},
                  {"OUT", out()},
                  {kMarkName, directory_.path()}};
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = getenv(name)) environment_[name] = value;
  }
}

void JobTest::SetUp() {
  ASSERT_EQ(access(MusterBinary().c_str(), X_OK), 0)
      << MusterBinary() << " is not there: build the target muster";
}

void JobTest::TearDown() {
  EXPECT_TRUE(NothingIsLeft()) << "left behind:\n" << Describe(ProcessesWith(mark()));
  for (pid_t pid : ProcessesWith(mark())) kill(pid, SIGKILL);
}

std::string JobTest::ShellScript(const std::string& name, const std::string& commands) const {
  return WriteScript(directory_.File(name), "#!/bin/sh\n" + commands + "\n");
}

std::string JobTest::PythonScript(const std::string& name, const std::string& text) const {
  WriteFile(directory_.File(name), text);
  return directory_.File(name);
}

SubprocessOptions JobTest::OptionsFor(const Arguments& arguments,
                                      const Environment& changes) const {
  SubprocessOptions options;
  options.argv = Arguments{MusterBinary()} + arguments;
  options.environment = environment_;
  for (const auto& [name, value] : changes) options.environment[name] = value;
  options.working_directory = directory();
  return options;
}

Subprocess JobTest::Start(const Arguments& arguments, const Environment& changes) const {
  return Subprocess(OptionsFor(arguments, changes));
}

Subprocess JobTest::StartProgram(const Arguments& argv, const Environment& changes) const {
  SubprocessOptions options = OptionsFor({}, changes);
  options.argv = argv;
  return Subprocess(options);
}

SubprocessResult JobTest::Run(const Arguments& arguments, const Environment& changes) const {
  return Start(arguments, changes).Wait();
}

bool JobTest::WaitForOut(const std::string& name) const {
  return WaitUntil([&] { return FileExists(Out(name)); });
}

std::string JobTest::mark() const { return absl::StrCat(kMarkName, "=", directory_.path()); }

pid_t JobTest::WorkerOf(int rank) const {
  const std::string variable =
      absl::StrCat(std::string(1, '\0'), "RANK=", rank, std::string(1, '\0'));
  for (const pid_t pid : ProcessesWith(mark())) {
    if (NameOf(pid) == "muster-train" &&
        absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), variable)) {
      return pid;
    }
  }
  return -1;
}

bool JobTest::NothingIsLeft() const {
  return WaitUntil([&] { return ProcessesWith(mark()).empty(); }, absl::Seconds(10));
}

}  // namespace muster::testing
