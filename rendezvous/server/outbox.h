// What waits to be written to one agent or observer: the newest directive, a few orders of the hang
// watch, a few inquiries, and answers to them and store replies each up to a bound in bytes. A slow
// reader so never holds memory without end.
//
// Why replies are not simply dropped at the bound: each answers one request of one worker, which
// would wait for it for ever. So the session first stops reading requests (kPauseBytes), and gives
// the agent up if answers to what it had asked before still fill the queue (kMaxBytes).
//
// Threads: compatible; pure.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "proto/base/inquiry.h"
#include "proto/base/membership.h"
#include "proto/base/store_messages.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::rendezvous {

class Outbox {
 public:
  static constexpr size_t kPauseBytes = size_t{4} << 20;
  static constexpr size_t kMaxBytes = 2 * kMaxStoreReplyBytes;
  // What a reply costs beside its values.
  static constexpr size_t kReplyBytes = 256;

  // Orders of the hang watch: the oldest are dropped, since what matters is asked and said again.
  static constexpr size_t kMaxOrders = 8;

  // Inquiries: more are dropped, and the observer is told that there was no answer.
  static constexpr size_t kMaxInquiries = 32;
  // Answers to them, by their number and in bytes together. They have a bound of their own: no
  // worker waits for one, and none may end an agent or keep it from being read. One alone is taken
  // whatever its size.
  static constexpr size_t kMaxInquiryAnswers = 4;
  static constexpr size_t kMaxAnswerBytes = 2 * kInquiryAnswerBytesMax;

  using Message = std::variant<Directive, StoreReply, hangs::WatchOrder, Inquiry, InquiryAnswer>;

  // Directives are complete statements: a newer one takes the place of one that has not been
  // written.
  void Push(const Directive& directive) { directive_ = directive; }

  void Push(const hangs::WatchOrder& order) {
    if (orders_.size() == kMaxOrders) orders_.pop_front();
    orders_.push_back(order);
  }

  // False if the bound is reached; the reply is not taken.
  bool Push(const StoreReply& reply) {
    const size_t bytes = BytesOf(reply);
    if (bytes_ + bytes > kMaxBytes) return false;
    bytes_ += bytes;
    replies_.push_back(reply);
    return true;
  }

  void Push(const Inquiry& inquiry) {
    if (inquiries_.size() < kMaxInquiries) inquiries_.push_back(inquiry);
  }

  // False if the bound is reached; the answer is not taken.
  bool Push(const InquiryAnswer& answer) {
    const size_t bytes = BytesOf(answer);
    const bool fits = answer_bytes_ == 0 || answer_bytes_ + bytes <= kMaxAnswerBytes;
    if (!fits || inquiry_answers_.size() == kMaxInquiryAnswers) return false;
    answer_bytes_ += bytes;
    inquiry_answers_.push_back(answer);
    return true;
  }

  // Orders first: a verdict comes before the directive that stops what it is about.
  std::optional<Message> Pop() {
    if (!orders_.empty()) {
      hangs::WatchOrder order = std::move(orders_.front());
      orders_.pop_front();
      return order;
    }
    if (directive_.has_value()) return std::exchange(directive_, std::nullopt);
    if (replies_.empty()) return PopForObservers();
    StoreReply reply = std::move(replies_.front());
    replies_.pop_front();
    bytes_ -= BytesOf(reply);
    return reply;
  }

  bool empty() const {
    return !directive_.has_value() && replies_.empty() && orders_.empty() && inquiries_.empty() &&
           inquiry_answers_.empty();
  }
  size_t bytes() const { return bytes_; }  // of the replies
  // Whether more requests may be read from the agent.
  bool has_room() const { return bytes_ <= kPauseBytes; }

 private:
  // What observers get waits behind everything that workers wait for.
  std::optional<Message> PopForObservers() {
    if (!inquiries_.empty()) {
      Inquiry inquiry = std::move(inquiries_.front());
      inquiries_.pop_front();
      return inquiry;
    }
    if (inquiry_answers_.empty()) return std::nullopt;
    InquiryAnswer answer = std::move(inquiry_answers_.front());
    inquiry_answers_.pop_front();
    answer_bytes_ -= BytesOf(answer);
    return answer;
  }

  static size_t BytesOf(const StoreReply& reply) {
    size_t bytes = kReplyBytes + reply.status.message().size();
    for (const std::string& value : reply.values) bytes += value.size();
    return bytes;
  }

  static size_t BytesOf(const InquiryAnswer& answer) {
    size_t bytes = kReplyBytes + answer.status.message().size() + answer.page.size();
    for (const InquiryPart& part : answer.parts) {
      bytes += kReplyBytes + part.node.size() + part.status.message().size() + part.body.size();
    }
    return bytes;
  }

  std::optional<Directive> directive_;
  std::deque<hangs::WatchOrder> orders_;
  std::deque<StoreReply> replies_;
  std::deque<Inquiry> inquiries_;
  std::deque<InquiryAnswer> inquiry_answers_;
  size_t bytes_ = 0;
  size_t answer_bytes_ = 0;
};

}  // namespace muster::rendezvous
