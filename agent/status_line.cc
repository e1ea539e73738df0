#include "agent/status_line.h"

#include <utility>

namespace muster::agent {
namespace {
constexpr absl::Duration kFirst = absl::Seconds(1);
constexpr absl::Duration kRepeat = absl::Seconds(30);
}  // namespace

StatusLine::StatusLine(asio::io_context& loop, std::function<void(const std::string&)> print)
    : print_(std::move(print)), timer_(loop) {}

void StatusLine::Show(const std::string& text) {
  if (text == text_) return;
  const bool was_empty = text_.empty();
  text_ = text;
  if (text_.empty()) {
    timer_.cancel();
    printed_.clear();
  } else if (was_empty || !printed_.empty()) {
    Arm(kFirst);
  }
}

void StatusLine::Arm(absl::Duration after) {
  timer_.expires_after(absl::ToChronoNanoseconds(after));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error || text_.empty()) return;
    printed_ = text_;
    print_(text_);
    Arm(kRepeat);
  });
}

}  // namespace muster::agent
