#include "proto/base/last_traceback.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(FindLastTraceback, EndsBehindTheLineThatNamesTheException) {
  const absl::string_view text =
      "step 1\nTraceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
      "    f()\nValueError: bad batch\nflushed at the end\n";
  const auto found = FindLastTraceback(text);
  ASSERT_TRUE(found);
  EXPECT_EQ(text.substr(0, found->begin), "step 1\n");
  EXPECT_EQ(text.substr(found->end), "flushed at the end\n");
  EXPECT_EQ(found->exception, "ValueError: bad batch");
}

TEST(FindLastTraceback, TakesTheLastOfSeveral) {
  EXPECT_EQ(FindLastTraceback("Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring\n"
                              "Traceback (most recent call last):\n  b\nOSError: 2")
                ->exception,
            "OSError: 2");
}

// Source: torch/_C and torch/distributed, the exception hook that PyTorch 2.3 and later install.
TEST(FindLastTraceback, ReadsTheLinesThatPyTorchBeginsWithTheRank) {
  EXPECT_EQ(FindLastTraceback("[rank3]: Traceback (most recent call last):\n"
                              "[rank3]:   File \"t.py\", line 1\n[rank3]: RuntimeError: NCCL\n")
                ->exception,
            "RuntimeError: NCCL");
}

TEST(FindLastTraceback, FindsNothingWhereNoExceptionIsNamed) {
  EXPECT_FALSE(FindLastTraceback(""));
  EXPECT_FALSE(FindLastTraceback("ValueError: bad\n"));
  EXPECT_FALSE(FindLastTraceback("Traceback (most recent call last):"));
  EXPECT_FALSE(FindLastTraceback("Traceback (most recent call last):\n  File \"t.py\"\n"));
}

}  // namespace
}  // namespace muster
