#include "proto/base/bounded_json.h"

#include <string>

#include "gtest/gtest.h"

namespace muster {
namespace {

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJsonFromOutside, TakesWhatIsNestedAsDeepAsAnybodyWrites) {
  EXPECT_TRUE(ParseJsonFromOutside(Nested(kJsonDepthMax)).is_array());
  EXPECT_EQ(ParseJsonFromOutside(R"({"a": {"b": [1, 2]}})")["a"]["b"][1], 2);
}

TEST(ParseJsonFromOutside, DiscardsWhatIsDeeper) {
  EXPECT_TRUE(ParseJsonFromOutside(Nested(kJsonDepthMax + 1)).is_discarded());
  EXPECT_TRUE(ParseJsonFromOutside(Nested(500'000)).is_discarded());
  EXPECT_TRUE(ParseJsonFromOutside(std::string(500'000, '{')).is_discarded());
}

TEST(ParseJsonFromOutside, CountsNoBracketsOfTexts) {
  const std::string text = "[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"]";
  EXPECT_EQ(ParseJsonFromOutside(text)[0].get<std::string>().size(), 2001u);
}

TEST(ParseJsonFromOutside, DiscardsWhatIsNone) {
  for (const char* text : {"", "{", "]", "\"", "\"\\", "nul"}) {
    EXPECT_TRUE(ParseJsonFromOutside(text).is_discarded()) << text;
  }
}

}  // namespace
}  // namespace muster
