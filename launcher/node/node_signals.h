// The signals that a node's run takes, through a descriptor: those of the job and of its terminal.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

class NodeSignals {
 public:
  explicit NodeSignals(asio::io_context& loop) : signals_(loop) {}

  // Keeps the signals that a node obeys for this object, also from threads and processes made
  // later. Signals of writing to what is closed or full, and of reading a terminal in the
  // background, are ignored from then on.
  //
  // Errors: kResourceExhausted: too few descriptors.
  absl::Status Hold(const JobSpec& spec, bool under_slurm);
  // One that has come, or comes within `timeout`. Blocks. Before Deliver.
  std::optional<int> Await(absl::Duration timeout);
  // Each, from the loop.
  void Deliver(std::function<void(int signal)> on_signal);

 private:
  std::optional<int> Read();
  void WaitForNext();

  asio::posix::stream_descriptor signals_;
  std::function<void(int signal)> on_signal_;
};

}  // namespace muster::launcher
