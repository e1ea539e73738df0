// The exact help page of every program, beside tests/data/help. MUSTER_REWRITE_HELP=1 in the
// environment of this test takes over what the programs say; review it as a diff.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::IsEmpty;

class HelpPage : public JobTest, public ::testing::WithParamInterface<std::string> {
 protected:
  // "muster run" is kept in muster_run.txt.
  std::string GoldenFile() const {
    return absl::StrCat(kSourceDirectory, "/tests/data/help/",
                        absl::StrReplaceAll(GetParam(), {{" ", "_"}}), ".txt");
  }
  std::string Print() const {
    Arguments words = absl::StrSplit(GetParam(), ' ');
    words[0] = absl::StrCat(kBinaryDirectory, "/", words[0]);
    return StartProgram(words + Arguments{"--help"}).Wait().out;
  }
};

TEST_P(HelpPage, IsAsItIsKept) {
  const std::string page = Print();
  if (std::getenv("MUSTER_REWRITE_HELP") != nullptr) WriteFile(GoldenFile(), page);
  EXPECT_EQ(page, ReadFile(GoldenFile()));
}

// What an option is for stands behind its name, or on the next line.
std::vector<std::string> TextsOfRows(absl::string_view page) {
  std::vector<std::string> texts;
  bool is_next = false;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(line);
    const size_t indent = line.size() - text.size();
    const bool is_option = indent > 0 && indent < 8 && absl::StartsWith(text, "-");
    const size_t gap = text.find("  ");
    if (is_option && gap != absl::string_view::npos) {
      texts.emplace_back(absl::StripLeadingAsciiWhitespace(text.substr(gap)));
    } else if (is_next && !is_option && !text.empty()) {
      texts.emplace_back(text);
    }
    is_next = is_option && gap == absl::string_view::npos;
  }
  return texts;
}

TEST_P(HelpPage, HasASubjectInEveryRow) {
  std::vector<std::string> without;
  for (const std::string& text : TextsOfRows(Print())) {
    const std::string row = absl::StrCat(absl::AsciiStrToLower(text), " ");
    for (const char* beginning : {"of ", "else ", "null ", "and ", "or ", "the same ", "its "}) {
      if (absl::StartsWith(row, beginning)) without.push_back(text);
    }
  }
  EXPECT_THAT(without, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Programs, HelpPage,
                         ::testing::Values("muster", "muster run", "muster status", "muster stacks",
                                           "muster logs", "muster top", "muster report",
                                           "muster explain", "muster metrics_token", "muster stop",
                                           "muster drain", "muster plan", "muster export",
                                           "muster bench", "muster doctor", "muster link",
                                           "musterd", "muster-train", "all_reduce_perf"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{" ", "_"}, {"-", "_"}});
                         });

}  // namespace
}  // namespace muster::testing
