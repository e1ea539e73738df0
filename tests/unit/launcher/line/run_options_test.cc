// The table of `muster run` as a whole; what its grammar is, proto/command_line's tests say.
#include "launcher/line/run_options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/command_line/help.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using command_line::Option;

command_line::Grammar Table() {
  static RunChoices choices;
  return RunGrammar(choices);
}

absl::StatusOr<command_line::CommandLine> Taken(const std::vector<std::string>& args,
                                                const EnvironmentMap& environment = {}) {
  return command_line::Split(Table(), args, environment);
}

TEST(RunOptions, AreAllReadAndExplained) {
  for (const Option& option : Table().options) {
    EXPECT_TRUE(option.read) << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_FALSE(option.group.empty()) << option.name;
  }
}

TEST(RunOptions, AreUnderstoodInBothSpellings) {
  for (const Option& option : Table().options) {
    const std::string dashed = absl::StrReplaceAll(option.name, {{"_", "-"}});
    for (const std::string& spelling : {"--" + option.name, "--" + dashed}) {
      const std::string arg = option.value_name.empty() ? spelling : spelling + "=7";
      const auto line = Taken({arg, "x.py"});
      ASSERT_TRUE(line.ok()) << line.status();
      EXPECT_NE(line->Find(option.name), nullptr) << spelling;
      EXPECT_THAT(line->warnings, IsEmpty()) << spelling;
    }
  }
}

TEST(RunOptions, HaveTheVariablesOfTorchrun) {
  for (const Option& option : Table().options) {
    if (option.variables.empty()) continue;
    const std::string name = absl::AsciiStrToUpper(option.name);
    if (option.variables.front() == "MUSTER_" + name) continue;  // an option that is only ours
    EXPECT_EQ(option.variables.front(), "PET_" + name);
    const auto line = Taken({"x.py"}, {{option.variables.front(), "1"}});
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_EQ(line->Find(option.name)->source, option.variables.front());
  }
  EXPECT_THAT(Taken({"x.py"}, {{"PET_LOGS_SPECS", "a"}, {"PET_NUMA_BINDING", "node"}})->values,
              IsEmpty());
}

TEST(RunOptions, ReadTorchsOwnVariablesAfterPets) {
  EXPECT_EQ(
      Taken({"x.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}})->Find("shutdown_timeout")->text(),
      "7");
  EXPECT_EQ(
      Taken({"x.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}, {"PET_SHUTDOWN_TIMEOUT", "8"}})
          ->Find("shutdown_timeout")
          ->text(),
      "8");
}

TEST(RunOptions, ShowTheirDefaultsInTheHelp) {
  const std::string help = command_line::HelpText(Table());
  EXPECT_THAT(help, StartsWith("usage: muster run [options] SCRIPT"));
  EXPECT_THAT(help, HasSubstr("SIGKILL [30s]"));
  EXPECT_THAT(help, HasSubstr("--master_port=PORT "));
}

}  // namespace
}  // namespace muster::launcher
