// A fixture for tests that run the real `muster`: a home and a temporary directory of its own, a
// mark that every descendant carries, and the expectation that nothing outlives the test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::testing {

// The programs that are tested: those of $MUSTER_TEST_PROGRAMS, a directory, where that is set (the
// gate has a few tests run those of a release), else those that the tests were built with.
std::string MusterBinary();
std::string MusterdBinary();
std::string MusterTrainBinary();

using Arguments = std::vector<std::string>;
// One list after the other.
Arguments operator+(Arguments first, const Arguments& second);

// How a job ended; a failure shows its whole output.
MATCHER_P(ExitsWith, code, "ends with exit code " + std::to_string(code)) {
  return arg.ended && arg.exit_code == code;
}

class JobTest : public ::testing::Test {
 protected:
  JobTest();
  // Fails the test if the program has not been built.
  void SetUp() override;
  // Expects that no process with this test's mark lives on, and ends those that do.
  void TearDown() override;

  // An executable shell script in this test's directory; returns its path. The `#!` line is added.
  std::string ShellScript(const std::string& name, const std::string& commands) const;
  // A Python program, not executable.
  std::string PythonScript(const std::string& name, const std::string& text) const;

  // Starts `muster` with `arguments` exactly as given. `changes` are set over environment().
  Subprocess Start(const Arguments& arguments, const Environment& changes = {}) const;
  // Starts another program with the same environment, e.g. a link to muster.
  Subprocess StartProgram(const Arguments& argv, const Environment& changes = {}) const;
  // Start and Wait.
  SubprocessResult Run(const Arguments& arguments, const Environment& changes = {}) const;

  // Serves what Start cannot express; argv is without the program.
  SubprocessOptions OptionsFor(const Arguments& arguments, const Environment& changes = {}) const;

  // Workers find this test's directory for results as $OUT.
  std::string Out(const std::string& name) const { return out() + "/" + name; }
  std::string ReadOut(const std::string& name) const { return ReadFile(Out(name)); }
  // Waits until a worker has made the file.
  bool WaitForOut(const std::string& name) const;
  std::string out() const { return directory_.File("out"); }
  const std::string& directory() const { return directory_.path(); }

  // "NAME=value" that every descendant of the job has in its environment.
  std::string mark() const;
  // The muster-train of the job that was started as this rank; -1: there is none.
  pid_t WorkerOf(int rank) const;
  // Waits until no process of the job is left; false at the deadline.
  bool NothingIsLeft() const;

  const Environment& environment() const { return environment_; }

 private:
  TemporaryDirectory directory_;
  Environment environment_;
};

}  // namespace muster::testing
