// Answers whoever asks at a TCP port whether this agent is alive (TORCHELASTIC_HEALTH_CHECK_PORT):
// each connection gets one HTTP answer and is closed. It comes from the agent's own loop, so an
// agent that hangs gives none.
//
// One event loop, loop thread only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "asio/io_context.hpp"

namespace muster::agent {

class HealthPort {
 public:
  explicit HealthPort(asio::io_context& loop);
  ~HealthPort();

  // Listens on `port` of every address.
  //
  // Errors: kUnavailable with errno in words.
  absl::Status Listen(int port);
  void Close();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace muster::agent
