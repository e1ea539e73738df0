#include "launcher/peers/first_word.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;

std::string WhyNot(const std::string& word, const std::string& here = "") {
  return std::string(
      CheckFirstWord(word, {"run", "agent", "status", "stop", "drain", "plan", "deepspeed"},
                     [&](const std::string& name) { return name == here; })
          .message());
}

TEST(CheckFirstWord, RefusesASubcommandOfAnotherVersion) {
  EXPECT_EQ(
      WhyNot("scale"),
      "this version has no subcommand scale (muster --help lists those that it has); to run a "
      "program of that name as a worker: muster run --no_python scale");
}

TEST(CheckFirstWord, NamesTheSubcommandThatOneSlipAwayWasMeant) {
  for (const char* word : {"stpo", "sto", "stopp", "stip"}) {
    EXPECT_THAT(WhyNot(word), HasSubstr("did you mean muster stop?")) << word;
  }
  EXPECT_THAT(WhyNot("train"), HasSubstr("muster run --no_python train"));
  EXPECT_THAT(WhyNot("deepsped"), HasSubstr("muster deepspeed"));
  EXPECT_THAT(WhyNot("statsu"), HasSubstr("muster status"));
}

TEST(CheckFirstWord, LeavesPathsScriptsOptionsAndOtherWordsAlone) {
  for (const char* word : {"", "./top", "top.py", "/usr/bin/top", "--top", "-m", "python3", "bash",
                           "sh", "echo", "true", "ls", "my_trainer", "muster-train", "hostname"}) {
    EXPECT_EQ(WhyNot(word), "") << word;
  }
}

TEST(CheckFirstWord, TakesAFileThatLiesHere) { EXPECT_EQ(WhyNot("scale", "scale"), ""); }

}  // namespace
}  // namespace muster::launcher
