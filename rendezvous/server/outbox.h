// What waits to be written to one agent: the newest directive, and store replies up to a bound. A
// slow reader so never holds memory without end.
//
// Threads: compatible; pure.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "proto/base/membership.h"
#include "proto/base/store_messages.h"

namespace muster::rendezvous {

class Outbox {
 public:
  static constexpr size_t kMaxReplies = 4096;

  using Message = std::variant<Directive, StoreReply>;

  // Directives are complete statements: a newer one takes the place of one that has not been
  // written.
  void Push(const Directive& directive) { directive_ = directive; }

  // False if the bound is reached: the reader is to be given up, since a lost reply would leave a
  // worker waiting.
  bool Push(const StoreReply& reply) {
    if (replies_.size() >= kMaxReplies) return false;
    replies_.push_back(reply);
    return true;
  }

  std::optional<Message> Pop() {
    if (directive_.has_value()) return std::exchange(directive_, std::nullopt);
    if (replies_.empty()) return std::nullopt;
    Message reply = std::move(replies_.front());
    replies_.pop_front();
    return reply;
  }

  bool empty() const { return !directive_.has_value() && replies_.empty(); }

 private:
  std::optional<Directive> directive_;
  std::deque<StoreReply> replies_;
};

}  // namespace muster::rendezvous
