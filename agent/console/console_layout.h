// How the streams of this node's workers share one console: a pipe, a file or a terminal.
//
// Bytes of workers go in, bytes for the console come out. There are three ways, and which one a
// console gets is decided by log_routing.h:
//
//   plain         a pipe or a file (and a terminal that cannot move its cursor, or that is nobody's
//                 screen): whole lines, with or without a prefix
//   terminal      several streams share it: finished lines with their prefix, and below them the
//                 rows that are still being drawn, each in its place
//   pass-through  a terminal that one worker has to itself: its bytes as they are
//
// Pure; time is an argument. log_pump.h owns descriptors and timers.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// A stream of a worker, as a console sees it.
struct ConsoleSource {
  int id = 0;  // unique among all streams of the console
  Rank rank;
  std::string prefix;  // empty: none
};

struct ConsoleOptions {
  std::string host;  // for the prefix of folded lines
  // How long an unfinished line waits for its end before others may print below it.
  absl::Duration partial_line_wait = absl::Seconds(1);
  // How often rows that are being drawn are refreshed.
  absl::Duration frame = absl::Milliseconds(30);
  bool fold = false;
  absl::Duration fold_window = absl::Milliseconds(50);
  int num_ranks = 1;  // that print here; a folded line that all have printed waits no longer
  friend bool operator==(const ConsoleOptions&, const ConsoleOptions&) = default;
};

struct WindowSize {
  int columns = 80;
  int rows = 24;
  friend bool operator==(const WindowSize&, const WindowSize&) = default;
};

// Loop thread only. A source is opened before its first Append and not used after its End.
class ConsoleLayout {
 public:
  virtual ~ConsoleLayout() = default;

  virtual void Open(const ConsoleSource& source) = 0;
  // An open source has another rank or prefix from now on. A line that it has begun goes on.
  virtual void Rename(const ConsoleSource& source, MonoTime now) = 0;
  // How many ranks print here from now on: ConsoleOptions::num_ranks. Lines that are held for their
  // likes appear, since their ranks may be others' next.
  virtual void SetNumRanks(int) {}
  virtual void Append(int source, absl::string_view bytes, MonoTime now) = 0;
  // Nothing more comes from it: what it has not finished appears now.
  virtual void End(int source, MonoTime now) = 0;
  // A line of ours, in a row of its own, behind what workers have printed before it.
  virtual void PrintLine(absl::string_view line, MonoTime now) = 0;
  // Another layout goes on here; all sources have ended. The cursor is at the start of a row.
  virtual void Leave() {}
  // What is due at `now` appears.
  virtual void Tick(MonoTime now) = 0;
  // When Tick has something to do; InfiniteFuture() if nothing waits.
  virtual MonoTime NextDeadline() const = 0;
  virtual void Resize(WindowSize) {}

  // What is to be written now. The caller takes it after each call above.
  std::string TakeOutput() { return std::exchange(out_, {}); }

 protected:
  std::string out_;
};

// With a prefix every redrawing of a bar is a line of its own, as under torchrun's --tee; without,
// bytes stay what they are.
std::unique_ptr<ConsoleLayout> MakePlainLayout(ConsoleOptions options);
std::unique_ptr<ConsoleLayout> MakeTerminalLayout(ConsoleOptions options, WindowSize size);
std::unique_ptr<ConsoleLayout> MakePassThroughLayout();

}  // namespace muster::agent
