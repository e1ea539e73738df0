// The agent's standard output and standard error, on which the lines of all workers and our own
// meet: two consoles, or one if they are one file. What their layouts put out is written here, and
// their deadlines are kept.
//
// Loop thread only.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "agent/console/console_layout.h"
#include "agent/console/console_writer.h"
#include "agent/console/line_format.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {

struct Console {
  enum class Kind { kPlain, kTerminal, kPassThrough };

  // Begins as a plain one.
  Console(asio::io_context& loop, ConsoleWriter::Options output, ConsoleOptions options);
  // A new layout of that kind. All sources of the one before have ended.
  void MakeLayout(Kind its_kind);

  const int fd;
  const bool is_terminal;
  const bool is_screen;  // a terminal in which drawing has a sense
  ConsoleWriter writer;
  const ConsoleOptions options;
  Kind kind = Kind::kPlain;
  std::unique_ptr<ConsoleLayout> layout;
};

class Consoles {
 public:
  // `on_drained` is called when a console has room again.
  Consoles(asio::io_context& loop, int stdout_fd, int stderr_fd, const ConsoleOptions& options,
           std::function<void()> on_drained);

  Console& of(ConsoleStream stream) { return *consoles_[of_stream_[Index(stream)]]; }
  // Both, or the one that is both.
  const std::vector<std::unique_ptr<Console>>& all() const { return consoles_; }

  // Called after each call of a layout.
  void WriteOut();
  // The terminals among them may have other sizes.
  void Resize();
  // Waits at most `at_most` for room; false if something is left.
  bool Flush(absl::Duration at_most);

 private:
  void ArmTimer();
  void OnTimer();

  std::vector<std::unique_ptr<Console>> consoles_;  // one or two
  std::array<size_t, 2> of_stream_{};
  asio::steady_timer timer_;
  MonoTime timer_at_ = MonoTime::InfiniteFuture();
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent
