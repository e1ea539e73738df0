// Writes to one of the agent's standard streams without ever blocking the loop.
//
// A terminal that is stopped (Ctrl-S) or a pager that does not read must not cost this node its
// lease. What does not fit is kept and written when there is room; `is_congested` tells the pump to
// stop reading from workers until then, so that they wait as they would for a slow terminal, and
// nothing is lost.
//
// SIGPIPE must be ignored in the process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// Loop thread only.
class ConsoleWriter {
 public:
  // More than pipes of all workers hold; beyond it lines are dropped and counted.
  static constexpr size_t kBacklogBytesMax = 64 << 20;

  struct Options {
    int fd = 1;                        // not owned; outlives this object
    std::string name;                  // "standard output", for messages
    std::function<void()> on_drained;  // called on the loop when the backlog has been written
  };
  ConsoleWriter(asio::io_context& loop, Options options);
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // If the reader has gone, says so once and drops this and all that follows.
  void Write(absl::string_view bytes);
  // Writes the backlog, waiting at most `at_most` for room. True if nothing is left.
  bool Flush(absl::Duration at_most);

  bool is_congested() const { return !backlog_.empty(); }

 private:
  enum class Way {
    kWhole,   // a file, or a description of our own that does not block
    kSocket,  // shared with others, so O_NONBLOCK must not be set on it
    kPieces   // shared and blocking: small pieces, when poll says there is room
  };

  int fd() const { return own_ ? own_.get() : options_.fd; }
  void OpenOwnDescription();
  ssize_t TryWrite(absl::string_view bytes);
  size_t WriteWhatFits(absl::string_view bytes);
  void WriteBacklog();
  void WaitForRoom();
  void OnRoom();
  void GiveUp(int error);

  // Constant after construction.
  const Options options_;
  Way way_ = Way::kPieces;
  UniqueFd own_;
  // Loop thread only.
  asio::posix::stream_descriptor room_;  // of a duplicate of own_, once it was needed
  asio::steady_timer retry_;             // where room_ cannot be used
  std::string backlog_;
  int64_t dropped_bytes_ = 0;
  bool is_waiting_ = false;
  bool is_gone_ = false;
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent
