#include "worker_runtime/train/sample_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/string_view.h"

namespace muster::train {
namespace {

std::string Printed(absl::string_view text) {
  std::vector<int32_t> bytes;
  for (const unsigned char byte : text) bytes.push_back(byte);
  return PrintableText(bytes);
}

TEST(PrintableText, KeepsTextAndLineEnds) {
  EXPECT_EQ(Printed("GNU\tGPL,\nversion 3\n"), "GNU\tGPL,\nversion 3\n");
  EXPECT_EQ(Printed("Stra\u00dfe \u20ac \U0001F600"), "Stra\u00dfe \u20ac \U0001F600");
}

TEST(PrintableText, ShowsControlCharactersAsNumbers) {
  EXPECT_EQ(Printed("a\x1b[31mb\x07\r\x7f"), "a\\x1b[31mb\\x07\\x0d\\x7f");
  EXPECT_EQ(Printed(absl::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printed("\xc2\x9b"), "\\xc2\\x9b") << "U+009B steers terminals too";
}

TEST(PrintableText, ShowsBytesThatAreNoUtf8AsNumbers) {
  EXPECT_EQ(Printed("\xff"), "\\xff");
  EXPECT_EQ(Printed("\xe2\x82"), "\\xe2\\x82") << "cut";
  EXPECT_EQ(Printed("\xe2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(Printed("\xc0\xaf"), "\\xc0\\xaf") << "too long a form";
  EXPECT_EQ(Printed("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(Printed("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond U+10FFFF";
}

TEST(PrintableText, ShowsCharactersThatTurnTheDirectionOfWritingAsNumbers) {
  EXPECT_EQ(Printed("\u202e"), "\\xe2\\x80\\xae");
  EXPECT_EQ(Printed("\u2067"), "\\xe2\\x81\\xa7");
}

TEST(PrintableIds, BreaksLinesAtTheWidth) {
  EXPECT_EQ(PrintableIds({50256, 1, 22, 333}, 10), "50256 1 22\n333");
  EXPECT_EQ(PrintableIds({}, 10), "");
}

TEST(Indented, PutsTheMarginBeforeEachLineAndEndsTheLast) {
  EXPECT_EQ(Indented("a\n\nb", "| "), "| a\n| \n| b\n");
  EXPECT_EQ(Indented("a\n", "| "), "| a\n");
}

}  // namespace
}  // namespace muster::train
