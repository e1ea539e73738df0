#include "agent/console/console_layout.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

// A console with two sources, 0 and 1, and a clock of its own.
class Console {
 public:
  explicit Console(std::unique_ptr<ConsoleLayout> layout, bool with_prefix = true)
      : layout_(std::move(layout)) {
    for (int i = 0; i < 2; ++i)
      layout_->Open({i, Rank(i), with_prefix ? absl::StrCat("[", i, "] ") : ""});
  }
  Console& Write(int source, absl::string_view bytes) {
    layout_->Append(source, bytes, now_);
    return *this;
  }
  Console& End(int source) {
    layout_->End(source, now_);
    return *this;
  }
  Console& Rename(int source, int rank) {
    layout_->Rename({source, Rank(rank), absl::StrCat("[", rank, "] ")}, now_);
    return *this;
  }
  Console& SetNumRanks(int num_ranks) {
    layout_->SetNumRanks(num_ranks);
    return *this;
  }
  Console& Leave() {
    layout_->Leave();
    return *this;
  }
  Console& PrintLine(absl::string_view line) {
    layout_->PrintLine(line, now_);
    return *this;
  }
  Console& Wait(absl::Duration time) {
    const MonoTime until = now_ + time;
    while (layout_->NextDeadline() <= until) {
      now_ = layout_->NextDeadline();
      layout_->Tick(now_);
    }
    now_ = until;
    return *this;
  }
  ConsoleLayout& layout() { return *layout_; }
  // What has been written since the last look.
  std::string Look() { return layout_->TakeOutput(); }

 private:
  std::unique_ptr<ConsoleLayout> layout_;
  MonoTime now_;
};

constexpr absl::Duration kFrame = absl::Milliseconds(40);

Console Raw() { return Console(MakePlainLayout({}), /*with_prefix=*/false); }
Console Prefixed() { return Console(MakePlainLayout({})); }

TEST(PlainLayout, PassesWholeLinesAsTheyAre) {
  EXPECT_EQ(Raw().Write(0, "{\"a\":").Write(1, "x\r\n").Write(0, "1}\n").Look(),
            "x\r\n{\"a\":1}\n");
}

TEST(PlainLayout, LetsAnUnfinishedLineWaitForItsEndForASecond) {
  Console console = Raw();
  console.Write(0, "half").Wait(absl::Milliseconds(900)).Write(1, "other\n");
  EXPECT_EQ(console.Look(), "other\n");
  EXPECT_EQ(console.Wait(absl::Milliseconds(100)).Look(), "half");
  EXPECT_EQ(console.Write(0, " and half\n").Look(), " and half\n");
}

TEST(PlainLayout, LetsTheOnlyStreamThereIsNotWait) {
  Console console = Raw();
  console.End(1);
  EXPECT_EQ(console.Write(0, "Name: ").Look(), "Name: ");
}

TEST(PlainLayout, AddsAnEndOfLineToTheLastBytesOnlyIfAnotherLineFollows) {
  EXPECT_EQ(Raw().Write(0, "a").End(0).Write(1, "b").End(1).Look(), "a\nb");
  EXPECT_EQ(Prefixed().Write(0, "a").End(0).Write(1, "b").End(1).Look(), "[0] a\n[1] b\n");
}

TEST(PlainLayout, PrefixesEveryRedrawingOfABar) {
  EXPECT_EQ(Prefixed().Write(0, "\r10%\r20%\r30%\n").Look(), "[0] 10%\n[0] 20%\n[0] 30%\n");
}

TEST(PlainLayout, FoldsAlsoWithoutPrefixes) {
  Console console(MakePlainLayout({.host = "h", .fold = true, .num_ranks = 2}),
                  /*with_prefix=*/false);
  console.Write(0, "same\n").Write(1, "same\n").Write(0, "mine\n");
  EXPECT_EQ(console.Look(), "[h:0-1 ×2] same\n");
  EXPECT_EQ(console.Wait(absl::Seconds(1)).Look(), "mine\n");
}

TEST(PlainLayout, FinishesALineUnderTheNameThatItsSourceHasThen) {
  EXPECT_EQ(Prefixed().Write(0, "half").Rename(0, 7).Write(0, " and half\n").Look(),
            "[7] half and half\n");
}

TEST(PlainLayout, GoesOnWithALineThatIsShownInPartWhenItsSourceIsRenamed) {
  Console console = Prefixed();
  EXPECT_EQ(console.Write(0, "half").Wait(absl::Seconds(1)).Look(), "[0] half");
  EXPECT_EQ(console.Rename(0, 7).Write(0, " and half\nnext\n").Look(), " and half\n[7] next\n");
}

TEST(PlainLayout, TakesARedrawingForALineOnceItsSourceHasAName) {
  EXPECT_EQ(Raw().Write(0, "a\rb\n").Rename(0, 0).Write(0, "\r10%\r20%\n").Look(),
            "a\rb\n[0] 10%\n[0] 20%\n");
}

TEST(PlainLayout, FoldsForThoseThatPrintNow) {
  Console console(MakePlainLayout({.host = "h", .fold = true, .num_ranks = 2}));
  EXPECT_EQ(console.Write(0, "before\n").SetNumRanks(3).Look(), "[0] before\n");
  console.Rename(0, 5).Rename(1, 6).layout().Open({2, Rank(7), "[7] "});
  EXPECT_EQ(console.Write(0, "same\n").Write(1, "same\n").Look(), "");
  EXPECT_EQ(console.Write(2, "same\n").Look(), "[h:5-7 ×3] same\n");
}

TEST(PlainLayout, LeavesTheConsoleAtTheStartOfARow) {
  EXPECT_EQ(Raw().Write(0, "a").End(0).End(1).Leave().Look(), "a\n");
  EXPECT_EQ(Raw().Write(0, "a\n").End(0).End(1).Leave().Look(), "a\n");
}

Console Terminal(int columns = 40, int rows = 10) {
  return Console(MakeTerminalLayout({.host = "h"}, {columns, rows}));
}

TEST(TerminalLayout, MovesNoCursorForPlainLines) {
  EXPECT_EQ(Terminal().Write(0, "a\n").Write(1, "b\n").Wait(kFrame).Look(), "[0] a\n[1] b\n");
}

TEST(TerminalLayout, DrawsTheBarsOfSeveralWorkersInPlace) {
  Console console = Terminal();
  console.Write(0, "\r10%").Write(1, "\r20%").Wait(kFrame);
  EXPECT_EQ(console.Look(), "[0] 10%\n[1] 20%");
  console.Write(0, "\r30%").Wait(kFrame);
  EXPECT_EQ(console.Look(), "\r\x1b[1A\x1b[J[0] 30%\n[1] 20%");
}

TEST(TerminalLayout, PrintsLinesAboveTheBars) {
  Console console = Terminal();
  console.Write(0, "\r10%").Wait(kFrame).Look();
  console.Write(1, "saved\n").Wait(kFrame);
  EXPECT_EQ(console.Look(), "\r\x1b[J[1] saved\n[0] 10%");
  console.PrintLine("muster: hello");
  EXPECT_EQ(console.Look(), "\r\x1b[Jmuster: hello\n[0] 10%");
}

TEST(TerminalLayout, LeavesAFinishedBarWhereItIs) {
  Console console = Terminal();
  console.Write(0, "\r99%").Wait(kFrame).Look();
  console.Write(0, "\r100%\n").End(0).Write(1, "x").End(1);
  EXPECT_EQ(console.Look(), "\r\x1b[J[0] 100%\n[1] x\n");
}

TEST(TerminalLayout, DrawsAtMostOncePerFrame) {
  Console console = Terminal();
  for (int i = 0; i < 100; ++i) console.Write(0, absl::StrCat("\r", i, "%"));
  EXPECT_EQ(console.Look(), "");
  EXPECT_EQ(console.Wait(kFrame).Look(), "[0] 99%");
}

TEST(TerminalLayout, CutsABarThatIsWiderThanTheTerminal) {
  Console console = Terminal(/*columns=*/10);
  EXPECT_EQ(console.Write(0, "\r0123456789").Wait(kFrame).Look(), "[0] 012345");
  console.layout().Resize({.columns = 8, .rows = 10});
  EXPECT_EQ(console.Write(0, "\rA").Wait(kFrame).Look(), "\r\x1b[J[0] A123\r\x1b[6G");
}

TEST(TerminalLayout, DrawsNoMoreRowsThanItCanGoBackTo) {
  Console console = Terminal(/*columns=*/40, /*rows=*/2);
  console.Write(0, "\ra").Write(1, "\rb").Wait(kFrame);
  EXPECT_EQ(console.Look(), "[0] a");
}

TEST(TerminalLayout, PutsTheCursorWhereTheProgramHasIt) {
  Console console = Terminal();
  EXPECT_EQ(console.Write(0, "(Pdb) xyz\b\b").Wait(kFrame).Look(), "[0] (Pdb) xyz\r\x1b[12G");
}

TEST(TerminalLayout, PrintsOurLineBehindWhatTheWorkerPrintedBefore) {
  Console console = Terminal();
  console.Write(0, "Traceback\n").PrintLine("muster: rank 0 failed");
  EXPECT_EQ(console.Look(), "[0] Traceback\nmuster: rank 0 failed\n");
}

TEST(TerminalLayout, PrintsNoLineOfOursThatSteersTheTerminal) {
  Console console = Terminal();
  console.PrintLine("muster: group '\x1b]52;c;x\a\xc2\x9b' hangs");
  EXPECT_EQ(console.Look(), "muster: group '<U+001B>]52;c;x<U+0007><U+009B>' hangs\n");
}

TEST(TerminalLayout, FoldsEqualLines) {
  Console console(MakeTerminalLayout({.host = "h", .fold = true, .num_ranks = 2}, {}));
  console.Write(0, "same\n").Write(1, "same\n").Wait(kFrame);
  EXPECT_EQ(console.Look(), "[h:0-1 ×2] same\n");
}

TEST(TerminalLayout, DrawsTheRowsOfASourceUnderItsNewName) {
  Console console = Terminal();
  console.Write(0, "\r10%").Wait(kFrame).Look();
  EXPECT_EQ(console.Rename(0, 7).Look(), "\r\x1b[J[7] 10%");
}

TEST(TerminalLayout, PrintsWhatASourceHasFinishedBeforeUnderTheNameThatItHadThen) {
  EXPECT_EQ(Terminal().Write(0, "done\n\r10%").Rename(0, 7).Look(), "[0] done\n[7] 10%");
  Console folds(MakeTerminalLayout({.host = "h", .fold = true, .num_ranks = 2}, {}));
  EXPECT_EQ(folds.Write(0, "done\n").Rename(0, 7).Look(), "[0] done\n");
}

TEST(PassThroughLayout, LeavesTheTerminalAsItWas) {
  const auto leave = [](absl::string_view bytes) {
    return Console(MakePassThroughLayout(), /*with_prefix=*/false).Write(0, bytes).Leave().Look();
  };
  EXPECT_EQ(leave("a\n"), "a\n");
  EXPECT_EQ(leave("a"), "a\n");
  EXPECT_EQ(leave("\x1b[?25l\r10%"), "\x1b[?25l\r10%\n\x1b[0m\x1b[?25h");
}

TEST(PassThroughLayout, ChangesNothing) {
  Console console(MakePassThroughLayout(), /*with_prefix=*/false);
  EXPECT_EQ(console.Write(0, "\x1b[2J\r10%").Look(), "\x1b[2J\r10%");
  EXPECT_EQ(console.PrintLine("muster: hello").Look(), "\nmuster: hello\n");
  EXPECT_EQ(console.PrintLine("muster: again").Look(), "muster: again\n");
}

}  // namespace
}  // namespace muster::agent
