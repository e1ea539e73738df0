// Says what the agent waits for, once the wait has lasted a second and again every half minute: a
// program that waits silently looks hung. Loop thread only.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"

namespace muster::agent {

class StatusLine {
 public:
  StatusLine(asio::io_context& loop, std::function<void(const std::string&)> print);

  // What is being waited for from now on; empty for nothing.
  void Show(const std::string& text);

 private:
  void Arm(absl::Duration after);

  std::function<void(const std::string&)> print_;
  asio::steady_timer timer_;
  std::string text_;
  std::string printed_;
};

}  // namespace muster::agent
