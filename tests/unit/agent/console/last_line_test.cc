// LastLine: what is kept of an output, and what is shown of it.
#include "agent/console/last_line.h"

#include <string>

#include "gtest/gtest.h"

namespace muster::agent {
namespace {

std::string LastOf(const std::string& output) {
  LastLine line;
  line.Take(output);
  std::string in_bytes;
  LastLine apart;
  for (const char byte : output) apart.Take({&byte, 1});
  EXPECT_EQ(apart.Text(), line.Text()) << "however the output is cut";
  return line.Text();
}

TEST(LastLine, IsTheLastThatIsNotBlank) {
  EXPECT_EQ(LastOf("GPU 0: ok\nGPU 1: gone\n \n\t\n"), "GPU 1: gone");
  EXPECT_EQ(LastOf(""), "");
  EXPECT_EQ(LastOf("\n\n"), "");
}

TEST(LastLine, NeedsNoEnd) { EXPECT_EQ(LastOf("GPU 0: ok\nGPU 1: gone"), "GPU 1: gone"); }

TEST(LastLine, IsTheLastStateOfABarThatIsDrawnOverItself) {
  EXPECT_EQ(LastOf("10%\r50%\r100%\r\n"), "100%");
}

TEST(LastLine, HasNoEscapeSequences) {
  EXPECT_EQ(LastOf("\x1b[31;1mGPU 1\x1b[0m: \x1b]0;title\agone\x1b]8;;http://x\x1b\\!\x1b(B\n"),
            "GPU 1: gone!");
  EXPECT_EQ(LastOf("GPU 1: gone\n\x1b[2J\x1b[H\n"), "GPU 1: gone") << "nothing is to be seen of it";
  EXPECT_EQ(LastOf(std::string("GPU\x07 1\0\x1b", 8)), "GPU 1");
}

TEST(LastLine, KeepsTheBeginningOfALineOfAnyLength) {
  LastLine line;
  line.Take("GPU 1 ");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) line.Take(block);
  EXPECT_EQ(line.Text().size(), LastLine::kMaxBytes);
  EXPECT_EQ(line.Text().substr(0, 8), "GPU 1 xx");
}

}  // namespace
}  // namespace muster::agent
