#include "proto/command_line/help.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::command_line {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Grammar Example() {
  return {.program = "muster run",
          .usage = "usage: muster run\n",
          .footer = "\nExit codes: 0.\n",
          .options = {{.name = "num_nodes", .value_name = "N", .group = "Job", .help = "nodes [1]"},
                      {.name = "tee",
                       .value_name = "0-3|RANK:0-3,...|and_something_rather_long",
                       .group = "Output",
                       .help = std::string(60, 'a') + " " + std::string(60, 'b'),
                       .short_name = 't',
                       .other_names = {"old_tee"}},
                      {.name = "fast", .group = "Job", .help = "faster"}},
          .also_called = {"torchrun"}};
}

TEST(HelpText, PutsEveryOptionUnderItsHeading) {
  const std::string help = HelpText(Example());
  EXPECT_THAT(help, StartsWith("usage: muster run\n\nJob:\n      --num_nodes=N "));
  EXPECT_LT(help.find("--fast "), help.find("Output:\n"));
  EXPECT_THAT(help, HasSubstr("\nHelp:\n  -h, --help "));
  EXPECT_THAT(help, EndsWith("Exit codes: 0.\n"));
  EXPECT_THAT(help, Not(HasSubstr("old_tee")));
}

TEST(HelpText, FitsTheScreen) {
  for (absl::string_view line : absl::StrSplit(HelpText(Example()), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(CompletionText, NamesEveryOptionForEveryShellAndCommand) {
  for (const char* shell : {"bash", "zsh", "fish", "tcsh"}) {
    const absl::StatusOr<std::string> text = CompletionText(Example(), shell);
    ASSERT_TRUE(text.ok()) << text.status();
    for (const char* part : {"num_nodes", "tee", "fast", "help", "muster", "torchrun"}) {
      EXPECT_THAT(*text, HasSubstr(part)) << shell;
    }
  }
}

TEST(CompletionText, TellsFishOfValuesShortNamesAndSubcommands) {
  const std::string run = *CompletionText(Example(), "fish");
  EXPECT_THAT(run, HasSubstr("complete -c muster -l num_nodes -r -d 'nodes [1]'\n"));
  EXPECT_THAT(run, HasSubstr("complete -c torchrun -l tee -s t -r -d 'aaa"));
  const Grammar stop = {
      .program = "muster stop",
      .options = {{.name = "now", .help = "don't wait for a step; \\ is a backslash"}}};
  EXPECT_THAT(*CompletionText(stop, "fish"),
              StartsWith("complete -c muster -n '__fish_seen_subcommand_from stop' -l now -d "
                         "'don\\'t wait for a step; \\\\ is a backslash'\n"));
}

}  // namespace
}  // namespace muster::command_line
