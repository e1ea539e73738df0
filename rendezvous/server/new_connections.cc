#include "rendezvous/server/new_connections.h"

#include <utility>

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);

}  // namespace

NewConnections::NewConnections(asio::io_context& loop, absl::Duration patience,
                               std::function<void(const std::string&)> on_wasted)
    : mailbox_(loop), patience_(patience), on_wasted_(std::move(on_wasted)), timer_(loop) {}

void NewConnections::Add(const std::string& peer) {
  due_[peer] = MonoNow() + patience_ + kLookInterval;
  if (!std::exchange(is_looking_, true)) LookOnLoop();
}

void NewConnections::LookOnLoop() {
  const MonoTime now = MonoNow();
  for (auto it = due_.begin(); it != due_.end();) {
    if (now < it->second) {
      ++it;
      continue;
    }
    const std::string peer = it->first;
    it = due_.erase(it);
    on_wasted_(peer);
  }
  is_looking_ = !due_.empty();
  if (!is_looking_) return;
  timer_.expires_after(absl::ToChronoNanoseconds(kLookInterval));
  timer_.async_wait([this, mailbox = mailbox_](const asio::error_code& error) {
    if (!error) mailbox.Post([this] { LookOnLoop(); });
  });
}

}  // namespace muster::rendezvous
