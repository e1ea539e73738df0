#include "agent/console/line_format.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The pieces a cutter gives out: "text|" for a finished one, "text" for one that is to go on, "+"
// before a continuation.
class Pieces {
 public:
  void operator()(const LinePiece& piece) const {
    seen.push_back(absl::StrCat(piece.begins ? "" : "+", piece.text, piece.ends ? "|" : ""));
  }
  mutable std::vector<std::string> seen;  // absl::FunctionRef calls const callables
};

std::vector<std::string> Cut(const std::vector<std::string>& chunks) {
  LineCutter cutter;
  Pieces pieces;
  for (const std::string& chunk : chunks) cutter.Append(chunk, pieces);
  cutter.Finish(pieces);
  return pieces.seen;
}

TEST(MakeLinePrefix, NamesHostAndGlobalRank) {
  EXPECT_EQ(MakeLinePrefix(kHostPrefix, {"node3", "default", Rank(12), LocalRank(4)}),
            "[node3:12] ");
}

TEST(MakeLinePrefix, ReplacesTheNamesOfATemplateAndAddsNothing) {
  EXPECT_EQ(MakeLinePrefix("[${role_name}${local_rank}/${rank}]:",
                           {"h", "trainer", Rank(12), LocalRank(4)}),
            "[trainer4/12]:");
}

TEST(MakeLinePrefix, IsTorchrunsToTheByte) {
  EXPECT_EQ(MakeLinePrefix(kTorchrunPrefix, {"node3", "trainer", Rank(12), LocalRank(4)}),
            "[trainer4]:");
}

TEST(MakeLinePrefix, ReadsATemplateAsPythonDoes) {
  const PrefixFields fields{"h", "r", Rank(7), LocalRank(3)};
  EXPECT_EQ(MakeLinePrefix("${host}$ ", fields), "${host}$ ");
  EXPECT_EQ(MakeLinePrefix("$$rank $rank:$ranks $local_rank|${rank", fields),
            "$rank 7:$ranks 3|${rank");
}

TEST(FormatRanks, JoinsNeighbours) {
  EXPECT_EQ(FormatRanks({Rank(0), Rank(1), Rank(2), Rank(5), Rank(8), Rank(9)}), "0-2,5,8-9");
}

TEST(LineCutter, EndsLinesAtNewlinesAndCarriageReturns) {
  EXPECT_THAT(Cut({"a\nb\rc\r\nd"}), ElementsAre("a|", "b|", "c|", "d|"));
}

TEST(LineCutter, KeepsCarriageReturnsWithinLinesIfAsked) {
  LineCutter cutter(/*cut_at_carriage_return=*/false);
  Pieces pieces;
  cutter.Append("\r10%\r20%\nb\r\n\n\r", pieces);
  cutter.Flush(pieces);
  EXPECT_THAT(pieces.seen, ElementsAre("\r10%\r20%|", "b\r|", "|", "\r"));
}

TEST(LineCutter, JoinsLinesAcrossChunks) {
  EXPECT_THAT(Cut({"ab", "c", "d\ne", "f\n"}), ElementsAre("abcd|", "ef|"));
}

TEST(LineCutter, KeepsEmptyLines) {
  EXPECT_THAT(Cut({"a\n\n\nb\n"}), ElementsAre("a|", "|", "|", "b|"));
}

TEST(LineCutter, KeepsAnEmptyLineAfterACarriageReturnAndNewline) {
  EXPECT_THAT(Cut({"a\r\n\r\nb\n"}), ElementsAre("a|", "b|"));
  EXPECT_THAT(Cut({"a\r\n\nb\n"}), ElementsAre("a|", "|", "b|"));
}

TEST(LineCutter, TakesACarriageReturnAndNewlineInTwoChunksAsOneEnd) {
  EXPECT_THAT(Cut({"a\r", "\nb\n"}), ElementsAre("a|", "b|"));
}

TEST(LineCutter, MakesNoEmptyLinesOfAProgressBarThatStartsWithACarriageReturn) {
  EXPECT_THAT(Cut({"\r 10%", "\r 20%", "\r100%\n"}), ElementsAre(" 10%|", " 20%|", "100%|"));
}

TEST(LineCutter, PassesBytesThatAreNotUtf8AndZeroBytesThrough) {
  EXPECT_THAT(Cut({std::string("\xff\xfe\0z\n", 5)}), ElementsAre(std::string("\xff\xfe\0z|", 5)));
}

TEST(LineCutter, ContinuesALineThatWasFlushed) {
  LineCutter cutter;
  Pieces pieces;
  cutter.Append("Name: ", pieces);
  EXPECT_THAT(pieces.seen, IsEmpty());
  EXPECT_TRUE(cutter.has_unfinished());
  cutter.Flush(pieces);
  cutter.Append("Ada\nnext\n", pieces);
  EXPECT_THAT(pieces.seen, ElementsAre("Name: ", "+Ada|", "next|"));
}

TEST(LineCutter, EndsAFlushedLineAtALaterNewline) {
  LineCutter cutter;
  Pieces pieces;
  cutter.Append("wait", pieces);
  cutter.Flush(pieces);
  cutter.Append("\nx\n", pieces);
  EXPECT_THAT(pieces.seen, ElementsAre("wait", "+|", "x|"));
}

TEST(LineCutter, GivesOutAVeryLongLineInPiecesThatJoinToTheWhole) {
  LineCutter cutter;
  std::string whole;
  int num_ends = 0;
  const std::string chunk(50000, 'x');
  for (int i = 0; i < 50; ++i) {
    cutter.Append(chunk, [&](const LinePiece& piece) {
      absl::StrAppend(&whole, piece.text);
      num_ends += piece.ends;
    });
  }
  EXPECT_GE(whole.size(), 2500000 - kLineBytesMax);
  EXPECT_EQ(num_ends, 0);
  cutter.Finish([&](const LinePiece& piece) {
    absl::StrAppend(&whole, piece.text);
    num_ends += piece.ends;
  });
  EXPECT_EQ(whole, std::string(2500000, 'x'));
  EXPECT_EQ(num_ends, 1);
}

TEST(LineCutter, FinishesNothingAfterACompleteLine) { EXPECT_THAT(Cut({"a\n"}), SizeIs(1)); }

class Rows {
 public:
  Rows& Print(int id, const LinePiece& piece) {
    rows_.Print({id, absl::StrCat("[", id, "] ")}, piece, text);
    return *this;
  }
  Rows& PrintLine(absl::string_view line) {
    rows_.PrintLine(line, text);
    return *this;
  }
  std::string text;

 private:
  ConsoleRows rows_;
};

const LinePiece kStart{.text = "start", .ends = false};
const LinePiece kRest{.text = " rest", .begins = false};
const LinePiece kEnd{.text = "", .begins = false};
const LinePiece kLine{.text = "line"};

TEST(ConsoleRows, PutsThePrefixBeforeEachLine) {
  EXPECT_EQ(Rows().Print(0, kLine).Print(1, kLine).text, "[0] line\n[1] line\n");
}

TEST(ConsoleRows, ContinuesAnUnfinishedLineWithoutASecondPrefix) {
  EXPECT_EQ(Rows().Print(0, kStart).Print(0, kRest).text, "[0] start rest\n");
}

TEST(ConsoleRows, StartsANewRowForAnotherStreamAndAgainForTheContinuation) {
  EXPECT_EQ(Rows().Print(0, kStart).Print(1, kLine).Print(0, kRest).text,
            "[0] start\n[1] line\n[0]  rest\n");
}

TEST(ConsoleRows, PrintsNoEmptyRowForTheEndOfAnInterruptedLine) {
  EXPECT_EQ(Rows().Print(0, kStart).Print(1, kLine).Print(0, kEnd).text, "[0] start\n[1] line\n");
}

TEST(ConsoleRows, EndsAnUnfinishedLineInItsRow) {
  EXPECT_EQ(Rows().Print(0, kStart).Print(0, kEnd).text, "[0] start\n");
}

TEST(ConsoleRows, PutsOurOwnLineInARowOfItsOwn) {
  EXPECT_EQ(Rows().Print(0, kStart).PrintLine("muster: hello").Print(0, kRest).text,
            "[0] start\nmuster: hello\n[0]  rest\n");
}

TEST(OutputTail, KeepsTheLastWholeLines) {
  OutputTail tail(20);
  for (int i = 0; i < 100; ++i) tail.Append(ConsoleStream::kStdout, absl::StrCat("line ", i, "\n"));
  EXPECT_LE(tail.bytes().size(), 40u);
  EXPECT_THAT(tail.bytes(), ::testing::StartsWith("line "));
  EXPECT_THAT(tail.bytes(), ::testing::EndsWith("line 98\nline 99\n"));
}

TEST(OutputTail, KeepsTheEndOfOneLargeChunk) {
  OutputTail tail(10);
  tail.Append(ConsoleStream::kStdout, "before\n");
  tail.Append(ConsoleStream::kStdout, std::string(1000, 'x') + "\nlast\n");
  EXPECT_EQ(tail.bytes(), "last\n");
}

TEST(OutputTail, SeparatesStreamsThatArriveInTurn) {
  OutputTail tail;
  tail.Append(ConsoleStream::kStdout, "loss 3");
  tail.Append(ConsoleStream::kStderr, "Traceback\n");
  EXPECT_EQ(tail.bytes(), "loss 3\nTraceback\n");
}

TEST(LastLines, TakesWholeLinesThatFit) {
  EXPECT_EQ(LastLines("aaaa\nbbbb\ncccc\n", 9), "bbbb\ncccc");
}

TEST(LastLines, DropsALineThatWouldBeTorn) {
  EXPECT_EQ(LastLines("aaaa\nbbbb\ncccc\n", 8), "cccc");
}

TEST(LastLines, CutsTheFrontOfALineThatIsTooLong) { EXPECT_EQ(LastLines("abcdefgh\n", 3), "fgh"); }

TEST(LastLines, ShowsWhatCarriageReturnsLeave) {
  EXPECT_EQ(LastLines("\r10%\r20%\r30%\ndone\r\n", 100), "30%\ndone");
}

TEST(LastLines, ShowsNothingThatWouldMoveACursorOrColourASummary) {
  EXPECT_EQ(LastLines(std::string("\x1b[31mred\x1b[0m\0\a\nouter\n\rinner\x1b[A\n\n", 32), 100),
            "red\nouter\ninner");
}

// What Python's buffer held comes behind it.
TEST(LastWordsIn, KeepsTheExceptionWhateverFollowsIt) {
  const std::string frame = "  File \"train.py\", line 1, in step\n";
  std::string traceback = "Traceback (most recent call last):\n";
  for (int i = 0; i < 100; ++i) traceback += frame;
  traceback += "ValueError: bad batch\n";
  std::string flushed;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&flushed, "step ", i, " loss 0.25\n");
  const std::string words = LastWordsIn("begins\n" + traceback + flushed, 2048);
  EXPECT_LE(words.size(), 2048u);
  EXPECT_THAT(words, StartsWith("Traceback (most recent call last):\n  ...\n  File"));
  EXPECT_THAT(words, HasSubstr("in step\nValueError: bad batch\n...\nstep "));
  EXPECT_THAT(words, EndsWith("step 299 loss 0.25"));
}

TEST(LastWordsIn, AreTheLastLinesWhereTheExceptionIsAmongThem) {
  const std::string text = "step 1\nTraceback (most recent call last):\n  f()\nKeyError: 1\nend\n";
  EXPECT_EQ(LastWordsIn(text, 2048), LastLines(text, 2048));
  EXPECT_EQ(LastWordsIn("a\nb\n", 2), "b");
}

TEST(MatchesAnyFilter, FindsAFilterAnywhereInTheLine) {
  EXPECT_TRUE(MatchesAnyFilter("step 4 loss 3.2", {"acc", "loss"}));
  EXPECT_FALSE(MatchesAnyFilter("step 4", {"acc", "loss"}));
}

}  // namespace
}  // namespace muster::agent
