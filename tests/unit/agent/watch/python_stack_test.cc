#include "agent/watch/python_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;
using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::muster::testing::Subprocess;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// That of Debian, and those of pyenv where it is there.
std::vector<std::string> Pythons() {
  std::vector<std::string> pythons;
  if (access("/usr/bin/python3", X_OK) == 0) pythons.push_back("/usr/bin/python3");
  const char* home = std::getenv("HOME");
  for (const char* minor : {"3.10", "3.11", "3.12", "3.13", "3.14"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(
             absl::StrCat(home == nullptr ? "" : home, "/.pyenv/versions"), ignored)) {
      const std::string name = entry.path().filename().string();
      const std::string program = entry.path().string() + "/bin/python3";
      if (absl::StartsWith(name, absl::StrCat(minor, ".")) && access(program.c_str(), X_OK) == 0) {
        pythons.push_back(program);
      }
    }
  }
  return pythons;
}

class PythonStack : public ::testing::Test {
 protected:
  // `text` lies at script_.
  Subprocess Start(const std::string& python, const std::string& text) {
    testing::WriteFile(script_, text);
    return Subprocess({.argv = {python, "-S", script_}});
  }

  TemporaryDirectory directory_;
  // Characters of two bytes, and of four.
  const std::string script_ = directory_.path() + "/tr\xC3\xA4in \xF0\x9F\x90\x8D.py";
};

// The program has a second thread, a generator, a method, a comprehension, and a call of C in
// between.
TEST_F(PythonStack, IsThatOfTheMainThreadOfEachVersion) {
  const std::string text =
      "import sys, threading, time\n"
      "def other(): time.sleep(1000)\n"
      "threading.Thread(target=other, daemon=True).start()\n"
      "class Loader:\n"
      "    def fetch(self, key):\n"
      "        if key == 1:\n"
      "            print('ready', flush=True)\n"
      "            time.sleep(\n"
      "                1000)\n"
      "        return key\n"
      "def batches(loader):\n"
      "    for index in range(3):\n"
      "        yield sorted([index],\n"
      "                     key=loader.fetch)\n"
      "def \xC3\xBC"
      "bung():\n"
      "    for batch in batches(Loader()):\n"
      "        pass\n"
      "\xC3\xBC"
      "bung()\n";
  ASSERT_THAT(Pythons(), ::testing::Not(IsEmpty()));
  for (const std::string& python : Pythons()) {
    SCOPED_TRACE(python);
    Subprocess program = Start(python, text);
    ASSERT_TRUE(program.WaitForOutput("ready"));
    const std::vector<std::string> expected = {absl::StrCat("fetch at ", script_, ":8"),
                                               absl::StrCat("batches at ", script_, ":13"),
                                               absl::StrCat("\xC3\xBC"
                                                            "bung at ",
                                                            script_, ":16"),
                                               absl::StrCat("<module> at ", script_, ":18")};
    absl::StatusOr<std::vector<std::string>> stack;
    // It says so a moment before it sleeps.
    WaitUntil([&] {
      stack = ReadPythonStack(program.pid());
      return !stack.ok() || *stack == expected;
    });
    ASSERT_THAT(stack, IsOk());
    EXPECT_EQ(*stack, expected);
  }
}

// Nobody else in it can say anything.
TEST_F(PythonStack, IsReadWhileSomebodyHoldsTheGil) {
  Subprocess program = Start("/usr/bin/python3",
                             "import ctypes\n"
                             "def stuck():\n"
                             "    print('ready', flush=True)\n"
                             "    ctypes.PyDLL(None).sleep(1000)\n"
                             "stuck()\n");
  ASSERT_TRUE(program.WaitForOutput("ready"));
  const std::vector<std::string> expected = {absl::StrCat("stuck at ", script_, ":4"),
                                             absl::StrCat("<module> at ", script_, ":5")};
  absl::StatusOr<std::vector<std::string>> stack;
  // It says so a moment before it looks the function up.
  WaitUntil([&] {
    stack = ReadPythonStack(program.pid());
    return stack.ok() && *stack == expected;
  });
  ASSERT_THAT(stack, IsOk());
  EXPECT_EQ(*stack, expected);
}

TEST_F(PythonStack, EndsWithItsInnermostFramesWhereItIsDeep) {
  Subprocess program = Start("/usr/bin/python3",
                             "import time\n"
                             "def down(n):\n"
                             "    if n > 0:\n"
                             "        return down(n - 1)\n"
                             "    print('ready', flush=True)\n"
                             "    time.sleep(1000)\n"
                             "down(500)\n");
  ASSERT_TRUE(program.WaitForOutput("ready"));
  EXPECT_TRUE(WaitUntil([&] {
    const auto stack = ReadPythonStack(program.pid());
    return stack.ok() && stack->size() == 48 && absl::EndsWith(stack->front(), ":6") &&
           absl::EndsWith(stack->back(), ":4");
  }));
}

TEST_F(PythonStack, IsNotToBeHadOfOtherProgramsOrOneThatHasGone) {
  EXPECT_THAT(ReadPythonStack(getpid()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReadPythonStack(1 << 30), StatusIs(absl::StatusCode::kUnavailable));
}

// A memory in which anything stands: lists without an end, lengths that are none.
TEST(WalkPythonStack, EndsInAnyMemory) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    for (const PythonVersion version : {0x030A00F0u, 0x030B00F0u, 0x030C00F0u, 0x030D00F0u}) {
      const int kind = static_cast<int>(random() % 3);
      const auto read = [&](uint64_t, void* into, size_t size) {
        if (kind == 0 && random() % 8 == 0) return false;
        for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
          const uint64_t word = kind == 1 ? 64 : random() % 4096;  // 1: all point to one place
          std::memcpy(static_cast<char*>(into) + at, &word, std::min(sizeof(word), size - at));
        }
        return true;
      };
      const auto frames = WalkPythonStack(64, version, 64, read);
      EXPECT_TRUE(!frames.ok() || frames->size() <= 48);
    }
  }
}

}  // namespace
}  // namespace muster::agent
