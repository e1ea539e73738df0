// What this node does for workers that use PyTorch besides its store: the folder of torch_hook.py,
// and the Unix socket at which the hook's notes of process groups come in (group_calls.h).
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/watch/group_calls.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/ids.h"

namespace muster::agent {

class TorchPrograms {
 public:
  using Say = std::function<void(const GroupCalls::Line& line)>;
  // `tells_waits`: notices too, besides where groups meet. `on_met`: a worker of this round has
  // its group.
  TorchPrograms(asio::io_context& loop, bool tells_waits, Say say, std::function<void()> on_met);

  // Writes the hook and listens to it. Where that fails workers run without a hook.
  //
  // Errors: kUnavailable with errno in words.
  absl::Status Prepare(const std::string& runtime_directory);
  // The folder for the workers' PYTHONPATH, and the socket to which the hook sends its notes;
  // empty: there is no hook.
  const std::string& python_folder() const { return python_folder_; }
  const std::string& notes_socket() const { return notes_socket_; }

  void StartRound(Round round, int num_nodes);
  // Its workers are being stopped, or have ended: nothing is said of them any more.
  void EndRound() { StartRound(kNoRound, 1); }

 private:
  void AwaitNote();
  void TakeNotes();
  void Arm();
  void Tell();

  const Say say_;
  const std::function<void()> on_met_;
  asio::posix::stream_descriptor notes_;
  asio::steady_timer timer_;
  GroupCalls calls_;
  Round round_ = kNoRound;  // whose notes count
  std::string python_folder_;
  std::string notes_socket_;
};

}  // namespace muster::agent
