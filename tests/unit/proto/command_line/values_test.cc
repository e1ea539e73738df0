#include "proto/command_line/values.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Value>
std::string Message(const absl::StatusOr<Value>& value) {
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

TEST(ParseDuration, ReadsSecondsAndUnits) {
  EXPECT_EQ(*ParseDuration("30"), absl::Seconds(30));
  EXPECT_EQ(*ParseDuration("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("1h10m"), absl::Minutes(70));
  EXPECT_EQ(*ParseDuration("-1"), absl::Seconds(-1));
}

TEST(ParseDuration, RefusesWhatHasNoEndOrIsNoTime) {
  for (const char* text :
       {"", "inf", "-inf", "nan", "1e400", "1e10", "-1e10", "3000000h", "soon", "10 minutes"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(ParseBool, UnderstandsTheUsualWords) {
  for (const char* yes : {"1", "true", "True", "YES", "on"}) EXPECT_TRUE(*ParseBool(yes)) << yes;
  for (const char* no : {"0", "false", "No", "off"}) EXPECT_FALSE(*ParseBool(no)) << no;
  for (const char* bad : {"", "2", "maybe"}) EXPECT_FALSE(ParseBool(bad).ok()) << bad;
}

TEST(ParseInteger, TakesDigitsAndNothingElse) {
  EXPECT_EQ(*ParseInteger("-12"), -12);
  for (const char* bad : {"", " 1", "1 ", "+1", "1.0", "0x1", "99999999999", "six"}) {
    EXPECT_FALSE(ParseInteger(bad).ok()) << bad;
  }
}

TEST(ParseUint64, TakesTheWholeRange) {
  EXPECT_EQ(*ParseUint64("18446744073709551615"), UINT64_MAX);
  EXPECT_THAT(Message(ParseUint64("-1")), HasSubstr("between 0 and 18446744073709551615"));
}

TEST(ParseNumber, IsFinite) {
  EXPECT_EQ(*ParseNumber("3e-4"), 3e-4);
  for (const char* bad : {"", "nan", "inf", "1e999", "0.1 ", "fast"}) {
    EXPECT_FALSE(ParseNumber(bad).ok()) << bad;
  }
}

TEST(ParseName, IsNotEmpty) {
  EXPECT_EQ(*ParseName(" a"), " a");
  EXPECT_FALSE(ParseName("").ok());
  EXPECT_EQ(*ParseText(""), "");
}

TEST(ParseChoice, ListsTheChoicesAndTheNearest) {
  EXPECT_EQ(*ParseChoice<int>("two", {{"one", 1}, {"two", 2}, {"three", 3}}), 2);
  EXPECT_EQ(Message(ParseChoice<int>("tree", {{"one", 1}, {"two", 2}, {"three", 3}})),
            "expected one, two or three; did you mean three?");
  EXPECT_EQ(Message(ParseChoice<int>("x", {{"one", 1}})), "expected one");
}

TEST(Into, KeepsAGoodValueOnly) {
  int number = 1;
  EXPECT_TRUE(Into(ParseInteger, number)("2").ok());
  EXPECT_FALSE(Into(ParseInteger, number)("x").ok());
  EXPECT_EQ(number, 2);
  std::vector<std::string> list;
  EXPECT_TRUE(AddTo(ParseName, list)("a").ok());
  EXPECT_TRUE(AddTo(ParseName, list)("b").ok());
  EXPECT_THAT(list, ElementsAre("a", "b"));
}

TEST(IntoBetween, NamesItsBounds) {
  int64_t number = 1;
  EXPECT_TRUE(IntoBetween(0, 5, number)("5").ok());
  EXPECT_EQ(number, 5);
  EXPECT_EQ(IntoBetween(0, 5, number)("6").message(), "expected a whole number between 0 and 5");
}

}  // namespace
}  // namespace muster::command_line
