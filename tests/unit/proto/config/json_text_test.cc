#include "proto/config/json_text.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The node as JSON on one line, without blanks and with keys as they are; of an error the message.
std::string Compact(const ConfigNode& node) {
  using Kind = ConfigNode::Kind;
  std::string out;
  if (node.kind == Kind::kMap) {
    for (const auto& [key, value] : node.members) {
      out += (out.empty() ? "" : ",") + key + ":" + Compact(value);
    }
    return "{" + out + "}";
  }
  if (node.kind == Kind::kList) {
    for (const ConfigNode& item : node.items) out += (out.empty() ? "" : ",") + Compact(item);
    return "[" + out + "]";
  }
  if (node.kind == Kind::kNull) return "null";
  return node.kind == Kind::kText ? "<" + node.text + ">" : node.text;
}

std::string Read(const std::string& text) {
  const absl::StatusOr<ConfigNode> root = ReadJson(text);
  return root.ok() ? Compact(*root) : std::string(root.status().message());
}

// Source: hjson 3.1 gives the same of each.
TEST(ReadJson, ReadsWhatHjsonReads) {
  EXPECT_EQ(Read(R"({"a": 1, "b": [0.9, 1e-8], "c": {"d": null}})"),
            "{a:1,b:[0.9,1e-8],c:{d:null}}");
  EXPECT_EQ(Read("\xef\xbb\xbf{\"a\": 1}"), "{a:1}");
  EXPECT_EQ(Read("{\"a\": 1\r\n\"b\": [1\r\n2\r\n]\r\n\"c\": {}}\r\n"), "{a:1,b:[1,2],c:{}}");
  EXPECT_EQ(Read("{a: 1, 'b': 'it is \"so\"', b_c : true,}"), "{a:1,b:<it is \"so\">,b_c:true}");
  EXPECT_EQ(Read("# one\n{a: 1 // two\n/* three */ b: false # four\n}"), "{a:1,b:false}");
  EXPECT_EQ(Read("a: 1\nb: {\n  c: two words\n}\n"), "{a:1,b:{c:<two words>}}");
  EXPECT_EQ(Read("{type: AdamW\n betas: [0.9 , 0.95]}"), "{type:<AdamW>,betas:[0.9,0.95]}");
  EXPECT_EQ(Read("{a: AdamW, # all of it\n}"), "{a:<AdamW, # all of it>}");
  EXPECT_EQ(Read("{a: 1.\nb: 01\nc: 1e\nd: -1.5E+3\ne: +1\n}"),
            "{a:<1.>,b:<01>,c:<1e>,d:-1.5E+3,e:<+1>}");
  EXPECT_EQ(Read("{\n  a: '''\n     one\n       two\n     '''\n}"), "{a:<one\n  two>}");
  EXPECT_EQ(Read("{\n a: '''it's''' b: 2}"), "{a:<it's>,b:2}");
  EXPECT_EQ(Read(R"({"a": "\u00e4\n\'\/"})"), "{a:<\xc3\xa4\n'/>}");
  EXPECT_EQ(Read(R"({"a": "/\uD83D\udc0d/"})"), "{a:</\xf0\x9f\x90\x8d/>}");
}

TEST(ReadJson, RefusesHalfACharacterAndWhatIsNoNumber) {
  for (const char* text : {R"("\ud83d")", R"("\ud83dx")", R"("\ud83d\n")", R"("\ud83d\u0041")",
                           R"("\udc0d\ud83d")", R"("\ud83d\ud83d")"}) {
    EXPECT_EQ(Read(absl::StrCat("{\"a\": ", text, "}")),
              "line 1: a \\u of a text is half of a surrogate pair, and the other half is missing")
        << text;
  }
  for (const char* text : {R"("\u0x41")", R"("\u+041")", R"("\u41")", R"("\ud83d\u41")"}) {
    EXPECT_THAT(Read(absl::StrCat("{\"a\": ", text, "}")), StartsWith("line 1: a \\")) << text;
  }
}

TEST(ReadJson, NamesTheLineThatItCannotRead) {
  EXPECT_THAT(Read("{\"a\": 1,\n\"a\": 2}"), HasSubstr("line 2: the key 'a' is there twice"));
  EXPECT_THAT(Read("{\n\"a\": 1\n"), HasSubstr("line 3: the { of line 1 has no end"));
  EXPECT_THAT(Read("{ type: AdamW }"),
              AllOf(HasSubstr("the { of line 1 has no end"),
                    HasSubstr("goes to the end of its line, as 'AdamW }'")));
  EXPECT_THAT(Read("{\"a\": 1,, \"b\": 2}"), HasSubstr("line 1: expected a key, not ','"));
  EXPECT_THAT(Read("{\"a\": }"), HasSubstr("expected a value, not '}'"));
  EXPECT_THAT(Read("{two words: 1}"), HasSubstr("behind the key 'two'; one with blanks stands in"));
  EXPECT_THAT(Read("{\"a\": \"1\n\"}"),
              HasSubstr("line 1: a text in quotes has no end on its line"));
  EXPECT_THAT(Read("{\"a\": \"1\t\"}"), HasSubstr("has \\t in it"));
  EXPECT_THAT(Read("{\"a\": '''1"), HasSubstr("has no end"));
  EXPECT_THAT(Read("{\"a\": 1} x"), HasSubstr("something follows the end"));
  EXPECT_THAT(Read("{\"a\": 1 /* "), HasSubstr("a comment /* has no end"));
  EXPECT_THAT(Read(" # nothing\n"), HasSubstr("the text ends where a value should be"));
}

TEST(ReadJson, ReadsAnyTextOrRefusesItsLine) {
  testing::ForEachMutation("tests/unit/proto/corpus/hjson", 20000, [](const std::string& text) {
    const absl::StatusOr<ConfigNode> root = ReadJson(text);
    if (root.ok()) return;
    EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(root.status().message()), StartsWith("line ")) << text;
  });
}

}  // namespace
}  // namespace muster
