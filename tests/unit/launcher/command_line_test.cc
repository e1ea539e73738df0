#include "launcher/command_line.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Args = std::vector<std::string>;

CommandLine ReadAll(const Args& args, const EnvironmentMap& environment = {}) {
  absl::StatusOr<CommandLine> line = ReadCommandLine(args, environment);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine{};
}

std::string TextOf(const CommandLine& line, const std::string& name) {
  const GivenValue* given = line.Find(name);
  return given == nullptr ? "<absent>" : given->text;
}

std::string Message(const Args& args, const EnvironmentMap& environment = {}) {
  const absl::Status status = ReadCommandLine(args, environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ReadCommandLine, AcceptsEveryOptionInBothSpellingsAndBothForms) {
  for (const Option& option : RunOptions()) {
    const std::string dashed = absl::StrReplaceAll(option.name, {{"_", "-"}});
    for (const std::string& spelling : {"--" + option.name, "--" + dashed}) {
      if (option.value_name.empty()) {
        EXPECT_TRUE(ReadAll({spelling, "x.py"}).IsOn(option.name)) << spelling;
        continue;
      }
      EXPECT_EQ(TextOf(ReadAll({spelling, "7", "x.py"}), option.name), "7") << spelling;
      EXPECT_EQ(TextOf(ReadAll({spelling + "=7", "x.py"}), option.name), "7") << spelling;
    }
  }
}

TEST(ReadCommandLine, AcceptsTheShortOptionsInEveryForm) {
  const CommandLine line = ReadAll({"-m", "-r", "3", "-t=0:1", "pkg.train"});
  EXPECT_TRUE(line.IsOn("module"));
  EXPECT_EQ(TextOf(line, "redirects"), "3");
  EXPECT_EQ(TextOf(line, "tee"), "0:1");
  EXPECT_EQ(TextOf(ReadAll({"-r3", "x"}), "redirects"), "3");
}

TEST(ReadCommandLine, StopsAtTheScript) {
  const CommandLine line =
      ReadAll({"--nnodes=2", "train.py", "--nnodes=9", "-m", "--", "--unknown="});
  EXPECT_EQ(TextOf(line, "nnodes"), "2");
  EXPECT_FALSE(line.IsOn("module"));
  EXPECT_THAT(line.program, ElementsAre("train.py", "--nnodes=9", "-m", "--", "--unknown="));
}

TEST(ReadCommandLine, StopsAtADoubleDash) {
  EXPECT_THAT(ReadAll({"--standalone", "--", "--odd-name.py", "--x"}).program,
              ElementsAre("--odd-name.py", "--x"));
}

TEST(ReadCommandLine, KeepsScriptArgumentsByteForByte) {
  const Args args = {"t.py",  "$$", "${local_rank}", "",          "[a,b]", "\x01",
                     "--lr=", "-1", "'q'",           "--lr=\x01", "++"};
  EXPECT_EQ(ReadAll(args).program, args);
}

TEST(ReadCommandLine, KeepsValuesByteForByte) {
  EXPECT_EQ(TextOf(ReadAll({"--role", "", "x.py"}), "role"), "");
  EXPECT_EQ(TextOf(ReadAll({"--rdzv_endpoint=", "x.py"}), "rdzv_endpoint"), "");
  EXPECT_EQ(TextOf(ReadAll({"--rdzv_endpoint=[::1]:5", "x.py"}), "rdzv_endpoint"), "[::1]:5");
  EXPECT_EQ(TextOf(ReadAll({"--rdzv_id=[a,b]", "x.py"}), "rdzv_id"), "[a,b]");
  EXPECT_EQ(TextOf(ReadAll({"--rdzv_conf=a=1,b=\"2\"", "x.py"}), "rdzv_conf"), "a=1,b=\"2\"");
  EXPECT_EQ(TextOf(ReadAll({"--node_rank", "-1", "x.py"}), "node_rank"), "-1");
}

TEST(ReadCommandLine, DoesNotTakeTheScriptForTheValueOfAnEmptyOption) {
  EXPECT_THAT(ReadAll({"--rdzv_endpoint=", "train.py"}).program, ElementsAre("train.py"));
}

TEST(ReadCommandLine, TakesTheLastOfARepeatedOption) {
  EXPECT_EQ(TextOf(ReadAll({"--nnodes=2", "--nnodes", "3", "x.py"}), "nnodes"), "3");
  EXPECT_TRUE(ReadAll({"--standalone", "--standalone", "x.py"}).IsOn("standalone"));
}

TEST(ReadCommandLine, NamesTheNearestSpellingOfAnUnknownOption) {
  EXPECT_EQ(Message({"--nproc_per_nod=2", "x.py"}),
            "unknown option --nproc_per_nod=2; did you mean --nproc_per_node?");
  EXPECT_THAT(Message({"--nproc-per-nod=2", "x.py"}), HasSubstr("did you mean --nproc-per-node?"));
}

TEST(ReadCommandLine, AbbreviatesNothing) {
  EXPECT_THAT(Message({"--nproc=2", "x.py"}), HasSubstr("did you mean --nproc_per_node?"));
  EXPECT_THAT(Message({"--stand", "x.py"}), HasSubstr("did you mean --standalone?"));
}

TEST(ReadCommandLine, RefusesUnknownOptionsOfEveryShape) {
  for (const char* option : {"--learning_rate=3", "-x", "-1", "---nnodes", "-mx", "--x="}) {
    EXPECT_THAT(Message({option, "x.py"}), StartsWith("unknown option -")) << option;
  }
}

TEST(ReadCommandLine, RefusesAnOptionWithoutItsValue) {
  EXPECT_EQ(Message({"--nnodes"}), "--nnodes needs a value");
  EXPECT_EQ(Message({"-r"}), "--redirects needs a value");
  EXPECT_EQ(Message({"--rdzv_id", "--standalone", "x.py"}),
            "--rdzv_id needs a value, but is followed by the option --standalone");
}

TEST(ReadCommandLine, RefusesAFlagWithAValue) {
  EXPECT_EQ(Message({"--standalone=1", "x.py"}), "--standalone takes no value, but was given '1'");
  EXPECT_THAT(Message({"--standalone=", "x.py"}), StartsWith("--standalone takes no value"));
}

TEST(ReadCommandLine, ReadsTheVariableOfEveryOptionOfTorchrun) {
  for (const Option& option : RunOptions()) {
    if (option.environment.empty()) continue;
    EXPECT_EQ(option.environment.front(), "PET_" + absl::AsciiStrToUpper(option.name));
    const CommandLine line = ReadAll({"x.py"}, {{option.environment.front(), "1"}});
    EXPECT_EQ(TextOf(line, option.name), "1") << option.name;
    EXPECT_EQ(line.Find(option.name)->source, option.environment.front());
  }
}

TEST(ReadCommandLine, HasNoVariableForLogsSpecsAndNumaBinding) {
  const CommandLine line =
      ReadAll({"x.py"}, {{"PET_LOGS_SPECS", "a"}, {"PET_NUMA_BINDING", "node"}});
  EXPECT_THAT(line.values, IsEmpty());
}

TEST(ReadCommandLine, PrefersTheCommandLineToTheEnvironment) {
  EXPECT_EQ(TextOf(ReadAll({"--nnodes=2", "x.py"}, {{"PET_NNODES", "3"}}), "nnodes"), "2");
}

TEST(ReadCommandLine, TakesAnEmptyVariableForUnset) {
  EXPECT_EQ(ReadAll({"x.py"}, {{"PET_NNODES", ""}}).Find("nnodes"), nullptr);
}

TEST(ReadCommandLine, UnderstandsWordsInTheVariableOfAFlag) {
  for (const char* on : {"1", "true", "yes", "True"}) {
    EXPECT_TRUE(ReadAll({"x.py"}, {{"PET_STANDALONE", on}}).IsOn("standalone")) << on;
  }
  for (const char* off : {"0", "false", "no"}) {
    EXPECT_FALSE(ReadAll({"x.py"}, {{"PET_STANDALONE", off}}).IsOn("standalone")) << off;
  }
  EXPECT_THAT(Message({"x.py"}, {{"PET_STANDALONE", "maybe"}}),
              StartsWith("PET_STANDALONE=maybe: expected 1 or 0"));
}

TEST(ReadCommandLine, ReadsTorchsOwnVariablesAfterPets) {
  const EnvironmentMap torch = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}};
  EXPECT_EQ(TextOf(ReadAll({"x.py"}, torch), "shutdown_timeout"), "7");
  EnvironmentMap both = torch;
  both["PET_SHUTDOWN_TIMEOUT"] = "8";
  EXPECT_EQ(TextOf(ReadAll({"x.py"}, both), "shutdown_timeout"), "8");
}

TEST(HelpText, ExplainsEveryOptionUnderItsHeading) {
  const std::string help = HelpText();
  EXPECT_THAT(help, StartsWith("usage: muster run [options] SCRIPT"));
  for (const Option& option : RunOptions()) {
    EXPECT_THAT(help, HasSubstr("--" + option.name));
    EXPECT_THAT(help, HasSubstr(option.group + ":\n"));
    EXPECT_FALSE(option.help.empty()) << option.name;
  }
}

TEST(HelpText, ShowsValuesOfOptionsAndNoneOfFlags) {
  EXPECT_THAT(HelpText(), HasSubstr("--master_port=PORT "));
  EXPECT_THAT(HelpText(), HasSubstr("--standalone "));
}

TEST(HelpText, ShowsDefaults) { EXPECT_THAT(HelpText(), HasSubstr("and SIGKILL [30s]")); }

}  // namespace
}  // namespace muster::launcher
