#include "proto/config/python_yaml.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Status WhyNot(const std::string& text, const std::string& section = "") {
  std::vector<std::string> notes;
  return ReadYamlTree(text, notes, section).status();
}

std::string StrOf(const std::string& yaml) {
  std::vector<std::string> notes;
  const absl::StatusOr<ConfigNode> root = ReadYamlTree("k: " + yaml, notes);
  EXPECT_TRUE(root.ok()) << yaml << ": " << root.status();
  return root.ok() ? PythonText(*root->Find("k")) : "";
}

TEST(PythonText, WritesValuesAsPythonsStrDoes) {
  EXPECT_EQ(StrOf("true"), "True");
  EXPECT_EQ(StrOf("no"), "False");
  EXPECT_EQ(StrOf("'no'"), "no");
  EXPECT_EQ(StrOf("null"), "None");
  EXPECT_EQ(StrOf(""), "None");
  EXPECT_EQ(StrOf("4"), "4");
  EXPECT_EQ(StrOf("+4"), "4");
  EXPECT_EQ(StrOf("'+4'"), "+4");
  EXPECT_EQ(StrOf("007"), "007");
  EXPECT_EQ(StrOf("1.0"), "1.0");
  EXPECT_EQ(StrOf("0.10"), "0.1");
  EXPECT_EQ(StrOf("1.0e-5"), "1e-05");
  EXPECT_EQ(StrOf("1e-5"), "1e-5");  // PyYAML takes it for text
  EXPECT_EQ(StrOf("BACKWARD_PRE"), "BACKWARD_PRE");
  EXPECT_EQ(StrOf("[a, 1, yes, ~]"), "['a', 1, True, None]");
}

TEST(ReadYamlTree, SkipsAByteOrderMark) {
  std::vector<std::string> notes;
  const absl::StatusOr<ConfigNode> root = ReadYamlTree("\xef\xbb\xbf{\"k\": 1}", notes);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_NE(root->Find("k"), nullptr);
}

// PyYAML does the same.
TEST(ReadYamlTree, TakesTheLastOfAKeyThatStandsTwice) {
  std::vector<std::string> notes;
  const absl::StatusOr<ConfigNode> root =
      ReadYamlTree("a: 1\nb: {c: 1}\na: 2\nb: {d: 3, d: 4}\ne: 5\ne: {}\n", notes);
  ASSERT_TRUE(root.ok()) << root.status();
  ASSERT_EQ(root->members.size(), 3u);
  EXPECT_EQ(root->Find("a")->text, "2");
  EXPECT_EQ(root->Find("a")->line, 3);
  EXPECT_EQ(root->Find("b")->Find("c"), nullptr);
  EXPECT_EQ(root->Find("b")->Find("d")->text, "4");
  EXPECT_EQ(root->Find("e")->kind, ConfigNode::Kind::kMap);
  EXPECT_THAT(
      notes, ElementsAre("line 3: the key 'a' is there twice; this one holds, not that of line 1",
                         "line 4: the key 'b' is there twice; this one holds, not that of line 2",
                         "line 6: the key 'e' is there twice; this one holds, not that of line 5",
                         "line 4: the key 'd' is there twice; this one holds, not that of line 4"));
}

TEST(ReadYamlTree, NamesTheLineThatItCannotRead) {
  EXPECT_THAT(WhyNot("a: 1\nb: [").message(), HasSubstr("line "));
  EXPECT_THAT(WhyNot("just text").message(), HasSubstr("keys with values"));
  EXPECT_FALSE(WhyNot("").ok());
}

TEST(ReadYamlTree, ReadsOneSectionAndOnlyTheNamesOfOthers) {
  const std::string deep = "o: " + std::string(9, '[') + std::string(9, ']') + "\ns: {a: 1}\n";
  EXPECT_THAT(WhyNot(deep).message(), HasSubstr("line 1: the blocks are too deep"));
  std::vector<std::string> notes;
  const absl::StatusOr<ConfigNode> root = ReadYamlTree(deep, notes, "s");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->Find("o")->line, 1);
  EXPECT_THAT(root->Find("o")->items, IsEmpty());
  EXPECT_EQ(root->Find("s")->Find("a")->text, "1");
}

}  // namespace
}  // namespace muster
