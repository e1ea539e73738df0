#include "proto/command_line/command_line.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/field_error.h"
#include "proto/command_line/values.h"

namespace muster::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Args = std::vector<std::string>;

// A program with an option of each kind.
struct Program {
  int nodes = 1;
  int restarts = 0;
  std::string name = "default";
  std::string tee;
  std::vector<std::string> files;
  bool fast = false;

  Grammar MakeGrammar(bool ends_at_script = true) {
    return {.program = "prog run",
            .usage = "usage: prog\n",
            .options = {{.name = "num_nodes",
                         .value_name = "N",
                         .group = "Numbers",
                         .help = "nodes",
                         .read = Into(ParseInteger, nodes),
                         .variables = {"P_NUM_NODES", "OLD_NUM_NODES"},
                         .other_names = {"machines"},
                         .field = "nodes"},
                        {.name = "num_restarts",
                         .value_name = "N",
                         .group = "Numbers",
                         .help = "restarts",
                         .read = Into(ParseInteger, restarts),
                         .variables = {"P_NUM_RESTARTS"}},
                        {.name = "name",
                         .value_name = "TEXT",
                         .group = "Texts",
                         .help = "name",
                         .read = Into(ParseText, name)},
                        {.name = "tee",
                         .value_name = "T",
                         .group = "Texts",
                         .help = "tee",
                         .read = Into(ParseText, tee),
                         .short_name = 't'},
                        {.name = "data",
                         .value_name = "FILE ...",
                         .group = "Texts",
                         .help = "files",
                         .read = AddTo(ParseName, files),
                         .is_list = true},
                        {.name = "fast",
                         .group = "Texts",
                         .help = "fast",
                         .read = Into(ParseBool, fast),
                         .variables = {"P_FAST"},
                         .short_name = 'f'}},
            .ends_at_script = ends_at_script};
  }
};

CommandLine Taken(const Args& args, const EnvironmentMap& environment = {}) {
  Program program;
  absl::StatusOr<CommandLine> line = Split(program.MakeGrammar(), args, environment);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine();
}

std::string TextOf(const CommandLine& line, const std::string& name) {
  const Given* given = line.Find(name);
  return given == nullptr ? "<absent>" : given->text();
}

std::string Refusal(const Args& args, const EnvironmentMap& environment = {},
                    bool ends_at_script = true) {
  Program program;
  const absl::Status status =
      Split(program.MakeGrammar(ends_at_script), args, environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Split, TakesBothSpellingsAndBothForms) {
  for (const char* spelling : {"--num_nodes", "--num-nodes", "--machines"}) {
    EXPECT_EQ(TextOf(Taken({spelling, "7", "x.py"}), "num_nodes"), "7") << spelling;
    EXPECT_EQ(TextOf(Taken({std::string(spelling) + "=7", "x.py"}), "num_nodes"), "7") << spelling;
  }
  EXPECT_TRUE(Taken({"--fast", "x.py"}).IsOn("fast"));
}

TEST(Split, TakesShortOptionsInEveryForm) {
  EXPECT_EQ(TextOf(Taken({"-t", "3", "x"}), "tee"), "3");
  EXPECT_EQ(TextOf(Taken({"-t3", "x"}), "tee"), "3");
  EXPECT_EQ(TextOf(Taken({"-t=0:1", "x"}), "tee"), "0:1");
  const CommandLine both = Taken({"-ft", "3", "x"});
  EXPECT_TRUE(both.IsOn("fast"));
  EXPECT_EQ(TextOf(both, "tee"), "3");
}

TEST(Split, StopsAtTheScript) {
  const CommandLine line = Taken({"--num_nodes=2", "t.py", "--num_nodes=9", "-f", "--", "--odd="});
  EXPECT_EQ(TextOf(line, "num_nodes"), "2");
  EXPECT_FALSE(line.IsOn("fast"));
  EXPECT_THAT(line.script, ElementsAre("t.py", "--num_nodes=9", "-f", "--", "--odd="));
}

TEST(Split, StopsAtADoubleDash) {
  EXPECT_THAT(Taken({"--fast", "--", "--odd-name.py", "--x"}).script,
              ElementsAre("--odd-name.py", "--x"));
}

TEST(Split, DropsADoubleDashRightAfterTheScriptAlone) {
  EXPECT_THAT(Taken({"t.py", "--", "--x"}).script, ElementsAre("t.py", "--x"));
  EXPECT_THAT(Taken({"t.py", "--", "--"}).script, ElementsAre("t.py", "--"));
  EXPECT_THAT(Taken({"t.py", "-x", "--", "y"}).script, ElementsAre("t.py", "-x", "--", "y"));
  EXPECT_THAT(Taken({"--", "t.py", "--", "y"}).script, ElementsAre("t.py", "--", "y"));
}

TEST(Split, KeepsValuesAndScriptArgumentsByteForByte) {
  const Args script = {"t.py", "$$", "${local_rank}", "", "[a,b]", "\x01", "--lr=", "-1", "'q'"};
  EXPECT_EQ(Taken(script).script, script);
  EXPECT_EQ(TextOf(Taken({"--name", "", "x"}), "name"), "");
  EXPECT_EQ(TextOf(Taken({"--name=", "x"}), "name"), "");
  EXPECT_EQ(TextOf(Taken({"--name=a=1,b=\"2\"", "x"}), "name"), "a=1,b=\"2\"");
  EXPECT_EQ(TextOf(Taken({"--num_nodes", "-1", "x"}), "num_nodes"), "-1");
}

TEST(Split, TakesTheLastOfARepeatedOption) {
  EXPECT_EQ(TextOf(Taken({"--num_nodes=2", "--num-nodes", "3", "x"}), "num_nodes"), "3");
}

TEST(Split, TakesAUniqueBeginningWithAWarning) {
  for (const char* beginning : {"--num_n=2", "--num-n=2", "--mach=2"}) {
    const CommandLine line = Taken({beginning, "x.py"});
    EXPECT_EQ(TextOf(line, "num_nodes"), "2") << beginning;
    EXPECT_THAT(line.warnings,
                ElementsAre(HasSubstr("is taken for --num_nodes; write it in full")));
  }
  EXPECT_THAT(Taken({"--num_nodes=2", "x.py"}).warnings, IsEmpty());
}

TEST(Split, RefusesTheBeginningOfSeveral) {
  EXPECT_EQ(Refusal({"--num=2", "x.py"}),
            "--num could be --num_nodes, --num_restarts; write the option in full");
}

TEST(Split, NamesTheNearestSpellingOfAnUnknownOption) {
  EXPECT_EQ(Refusal({"--num_nods=2", "x"}),
            "unknown option --num_nods=2; did you mean --num_nodes?");
  EXPECT_THAT(Refusal({"--num-nods=2", "x"}), HasSubstr("did you mean --num-nodes?"));
  for (const char* odd : {"--learning_rate=3", "-x", "-1", "---num", "-fx", "--x="}) {
    EXPECT_THAT(Refusal({odd, "x"}), StartsWith("unknown option -")) << odd;
  }
}

TEST(Split, RefusesAnOptionWithoutItsValue) {
  EXPECT_EQ(Refusal({"--num_nodes"}), "--num_nodes needs a value");
  EXPECT_EQ(Refusal({"-t"}), "--tee needs a value");
  EXPECT_EQ(Refusal({"--name", "--", "x"}), "--name needs a value");
  EXPECT_EQ(Refusal({"--name", "--fast", "x"}),
            "--name needs a value, but is followed by the option --fast");
}

TEST(Split, RefusesAFlagWithAValue) {
  EXPECT_EQ(Refusal({"--fast=1", "x"}), "--fast takes no value, but was given '1'");
  EXPECT_THAT(Refusal({"--fast=", "x"}), StartsWith("--fast takes no value"));
}

TEST(Split, RefusesWhatBelongsToNoOptionWhereThereIsNoScript) {
  EXPECT_THAT(Refusal({"train.txt"}, {}, false), StartsWith("'train.txt' belongs to no option"));
  EXPECT_THAT(Refusal({"--num_nodes=1", "a\nb"}, {}, false), StartsWith("'a\\nb' belongs to no"));
}

TEST(Split, GivesAListItsValuesUntilTheNextOption) {
  Program program;
  const Grammar grammar = program.MakeGrammar(false);
  const absl::StatusOr<CommandLine> line =
      Split(grammar, {"--data", "a", "b", "--fast", "--data=c"}, {});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->Find("data")->texts, ElementsAre("a", "b", "c"));
  ASSERT_TRUE(ReadValues(grammar, *line).ok());
  EXPECT_THAT(program.files, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(program.fast);
}

TEST(Split, ReadsVariablesOfWhatIsNotOnTheCommandLine) {
  EXPECT_EQ(TextOf(Taken({"x"}, {{"P_NUM_NODES", "3"}}), "num_nodes"), "3");
  EXPECT_EQ(TextOf(Taken({"x"}, {{"OLD_NUM_NODES", "4"}}), "num_nodes"), "4");
  EXPECT_EQ(TextOf(Taken({"x"}, {{"P_NUM_NODES", "3"}, {"OLD_NUM_NODES", "4"}}), "num_nodes"), "3");
  EXPECT_EQ(TextOf(Taken({"--num_nodes=2", "x"}, {{"P_NUM_NODES", "3"}}), "num_nodes"), "2");
  EXPECT_EQ(TextOf(Taken({"x"}, {{"P_NUM_NODES", ""}}), "num_nodes"), "<absent>");
}

TEST(Split, UnderstandsWordsInTheVariableOfAFlag) {
  for (const char* on : {"1", "true", "YES"})
    EXPECT_TRUE(Taken({"x"}, {{"P_FAST", on}}).IsOn("fast"));
  for (const char* off : {"0", "no"}) EXPECT_FALSE(Taken({"x"}, {{"P_FAST", off}}).IsOn("fast"));
  EXPECT_THAT(Refusal({"x"}, {{"P_FAST", "maybe"}}), StartsWith("P_FAST=maybe: expected 1 or 0"));
}

TEST(Split, AnswersHelpVersionAndCompletionWhateverElseIsGiven) {
  for (const Args& args :
       {Args{"--help"}, {"-h", "--num_nodes=x"}, {"--version"}, {"--print_completion", "bash"}}) {
    EXPECT_FALSE(Taken(args).print.empty()) << args.front();
  }
  EXPECT_THAT(Taken({"--version"}).print, StartsWith("prog "));
  EXPECT_THAT(Refusal({"--print_completion=sh"}), HasSubstr("expected bash, zsh, fish or tcsh"));
}

TEST(ReadValues, PutsTheSourceInFrontOfWhatWasExpected) {
  Program program;
  const Grammar grammar = program.MakeGrammar();
  const auto refusal = [&](const Args& args, const EnvironmentMap& environment) {
    return std::string(ReadValues(grammar, *Split(grammar, args, environment)).message());
  };
  EXPECT_EQ(refusal({"--num-nodes=six", "x"}, {}), "--num_nodes=six: expected a whole number");
  EXPECT_EQ(refusal({"--machines=six", "x"}, {}), "--machines=six: expected a whole number");
  EXPECT_EQ(refusal({"x"}, {{"P_NUM_NODES", "si\nx"}}),
            "P_NUM_NODES=si\\nx: expected a whole number");
}

TEST(InWordsOf, NamesTheOptionOfAField) {
  Program program;
  const Grammar grammar = program.MakeGrammar();
  const absl::Status status = FieldError("nodes", " must be 1 or more, not 0");
  EXPECT_EQ(InWordsOf(grammar, Taken({"--machines=0", "x"}), status).message(),
            "--machines must be 1 or more, not 0");
  EXPECT_EQ(InWordsOf(grammar, Taken({"x"}), status).message(),
            "--num_nodes must be 1 or more, not 0");
  EXPECT_EQ(InWordsOf(grammar, Taken({"x"}), FieldError("nodes", ": none")).message(),
            "--num_nodes: none");
  EXPECT_EQ(InWordsOf(grammar, Taken({"x"}), FieldError("restarts", ": none")).message(),
            "restarts: none");
  EXPECT_TRUE(InWordsOf(grammar, Taken({"x"}), absl::OkStatus()).ok());
}

TEST(InWordsOf, LeavesAMessageAloneThatMerelyBeginsLikeAField) {
  Program program;
  const Grammar grammar = program.MakeGrammar();
  const CommandLine line = Taken({"x"}, {{"P_NUM_RESTARTS", "-1"}});
  for (const char* text : {"nodes must agree on a port", "nodes: none", "--num_restarts=-1: no"}) {
    EXPECT_EQ(InWordsOf(grammar, line, absl::InvalidArgumentError(text)).message(), text);
  }
  const absl::Status elsewhere = WithBeginning("the file's ", FieldError("nodes", ": none"));
  EXPECT_EQ(InWordsOf(grammar, line, elsewhere).message(), "the file's nodes: none");
}

TEST(InWordsOf, NamesTheVariableThatAValueCameFrom) {
  Program program;
  const Grammar grammar = program.MakeGrammar();
  const absl::Status status = FieldError("--num_restarts", "=-1: expected 0 or more");
  EXPECT_EQ(InWordsOf(grammar, Taken({"x"}, {{"P_NUM_RESTARTS", "-1"}}), status).message(),
            "--num_restarts=-1: expected 0 or more (from P_NUM_RESTARTS)");
  EXPECT_EQ(InWordsOf(grammar, Taken({"--num_restarts=-1", "x"}), status), status);
}

TEST(At, CarriesTheSourceAsDataBesidesItsWords) {
  const absl::Status refused = At("--nodes", "x", absl::InvalidArgumentError("expected a number"));
  EXPECT_EQ(refused.message(), "--nodes=x: expected a number");
  EXPECT_EQ(FieldOf(refused), "--nodes");
  EXPECT_TRUE(At("--nodes", "x", absl::OkStatus()).ok());
}

TEST(TextOfCommonValues, HasARowPerLineGivenOrNotAndLeavesOutWhatMayDiffer) {
  Program program;
  Grammar grammar = program.MakeGrammar(/*ends_at_script=*/false);
  for (Option& option : grammar.options) option.may_differ = option.name == "tee";
  const auto line = Split(grammar, {"--machines=2", "--data", "a", "b", "--fast", "--tee=all"}, {});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(TextOfCommonValues(grammar, *line),
            "--num_nodes=2\n--num_restarts=not given\n--name=not given\n--data=a b\n--fast=1\n");
}

}  // namespace
}  // namespace muster::command_line
