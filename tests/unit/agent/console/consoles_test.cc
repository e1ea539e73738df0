#include "agent/console/consoles.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "agent/console/pty.h"
#include "tests/unit/agent/console/log_pump_fixture.h"

namespace muster::agent {
namespace {

using ::testing::SizeIs;

class ConsolesTest : public ::testing::Test {
 protected:
  ConsolesTest() { std::signal(SIGPIPE, SIG_IGN); }

  asio::io_context loop_;
  const Channel out_ = MakePipe();
  const Channel err_ = MakePipe();
};

TEST_F(ConsolesTest, WriteEachStreamWhereItBelongs) {
  Consoles consoles(loop_, out_.write_end.get(), err_.write_end.get(), {}, [] {});
  consoles.of(ConsoleStream::kStdout).layout->PrintLine("to one", MonoNow());
  consoles.of(ConsoleStream::kStderr).layout->PrintLine("to the other", MonoNow());
  consoles.WriteOut();
  EXPECT_EQ(TakeAvailable(out_.read_end.get()), "to one\n");
  EXPECT_EQ(TakeAvailable(err_.read_end.get()), "to the other\n");
}

TEST_F(ConsolesTest, AreOneWhereBothAreOneFile) {
  const UniqueFd same(::fcntl(out_.write_end.get(), F_DUPFD_CLOEXEC, 3));
  Consoles consoles(loop_, out_.write_end.get(), same.get(), {}, [] {});
  EXPECT_THAT(consoles.all(), SizeIs(1));
  EXPECT_EQ(&consoles.of(ConsoleStream::kStdout), &consoles.of(ConsoleStream::kStderr));
}

TEST_F(ConsolesTest, WriteWhatALayoutHasHeldBackWhenItIsDue) {
  Consoles consoles(loop_, out_.write_end.get(), err_.write_end.get(),
                    {.partial_line_wait = absl::Milliseconds(1)}, [] {});
  ConsoleLayout& layout = *consoles.of(ConsoleStream::kStdout).layout;
  layout.Open({.id = 1, .rank = Rank(0)});
  layout.Open({.id = 2, .rank = Rank(1)});
  layout.Append(1, "without an end", MonoNow());
  consoles.WriteOut();
  std::string shown;
  while (shown.empty() && loop_.run_one() > 0) shown = TakeAvailable(out_.read_end.get());
  EXPECT_EQ(shown, "without an end");
}

TEST_F(ConsolesTest, SayWhenAConsoleHasRoomAgain) {
  int drained = 0;
  Consoles consoles(loop_, out_.write_end.get(), err_.write_end.get(), {}, [&] { ++drained; });
  Console& console = consoles.of(ConsoleStream::kStdout);
  console.layout->PrintLine(std::string(1 << 20, 'x'), MonoNow());
  consoles.WriteOut();
  EXPECT_TRUE(console.writer.is_congested());
  EXPECT_FALSE(consoles.Flush(absl::ZeroDuration()));
  size_t shown = 0;
  do {
    shown += TakeAvailable(out_.read_end.get()).size();
  } while (drained == 0 && loop_.run_one() > 0);
  shown += TakeAvailable(out_.read_end.get()).size();
  EXPECT_EQ(shown, (1 << 20) + 1);
  EXPECT_EQ(drained, 1);
  EXPECT_TRUE(consoles.Flush(absl::ZeroDuration()));
}

TEST_F(ConsolesTest, DrawOnATerminalAsWideAsItIsNow) {
  const std::optional<Pty> pty = OpenPty({.columns = 80, .rows = 24});
  ASSERT_TRUE(pty.has_value());
  Consoles consoles(loop_, pty->worker.get(), pty->worker.get(), {}, [] {});
  Console& console = consoles.of(ConsoleStream::kStdout);
  EXPECT_TRUE(console.is_terminal && console.is_screen);
  console.MakeLayout(Console::Kind::kTerminal);
  SetWindowSize(pty->ours.get(), {.columns = 10, .rows = 24});
  consoles.Resize();
  console.layout->Open({.id = 1, .rank = Rank(0)});
  console.layout->Append(1, "0123456789abc", MonoNow());
  consoles.WriteOut();
  std::string shown;
  while (shown.empty() && loop_.run_one() > 0) shown = TakeAvailable(pty->ours.get());
  EXPECT_EQ(shown, "0123456789");
}

}  // namespace
}  // namespace muster::agent
