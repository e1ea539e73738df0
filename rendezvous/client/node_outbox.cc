#include "rendezvous/client/node_outbox.h"

#include <utility>

#include "proto/rendezvous.pb.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

NodeOutbox::NodeOutbox(Incarnation incarnation) : incarnation_(incarnation) {}
NodeOutbox::~NodeOutbox() = default;

void NodeOutbox::BeginStream(bool knows_inquiries) {
  reports_.BeginStream();
  knows_inquiries_ = knows_inquiries;
  is_ask_unsent_ = asked_.has_value();
}

void NodeOutbox::EndStream() {
  reports_.EndStream();
  answers_.clear();
  inquiries_.clear();
}

void NodeOutbox::PutAnswer(const hangs::NodeWord& word) {
  if (answers_.size() >= kMaxUnsentWatchWords) return;
  Encode(word, answers_.emplace_back(std::make_unique<proto::FromAgent>())->mutable_watch());
}

absl::Status NodeOutbox::Put(const Inquiry& inquiry) {
  if (!knows_inquiries_) {
    return absl::UnavailableError("the rendezvous is of an older muster, and cannot be asked");
  }
  if (inquiries_.size() >= kMaxUnsentInquiries) {
    return absl::UnavailableError("too much is being asked of the rendezvous already");
  }
  Encode(inquiry, inquiries_.emplace_back(std::make_unique<proto::FromAgent>())->mutable_inquiry());
  return absl::OkStatus();
}

void NodeOutbox::Put(const InquiryReply& reply) {
  if (inquiries_.size() >= kMaxUnsentInquiries) return;
  Encode(reply,
         inquiries_.emplace_back(std::make_unique<proto::FromAgent>())->mutable_inquiry_reply());
}

void NodeOutbox::Ask(PersonsRequest request, std::function<void(StopAnswer)> on_answer) {
  asked_ = std::move(request);
  on_answer_ = std::move(on_answer);
}

void NodeOutbox::TakeAnswer(StopAnswer answer) {
  asked_.reset();
  if (on_answer_) on_answer_(std::move(answer));
}

bool NodeOutbox::Next(MonoTime now, ServerTerm term, proto::FromAgent& out) {
  return reports_.Next(now, incarnation_, term, out) || NextAsk(out) || NextOf(answers_, out) ||
         store_.Next(out) || NextOf(inquiries_, out);
}

bool NodeOutbox::NextAsk(proto::FromAgent& out) {
  if (!std::exchange(is_ask_unsent_, false) || !asked_) return false;
  if (const auto* stop = std::get_if<StopRequest>(&*asked_)) {
    Encode(*stop, out.mutable_ask());
  } else {
    const Key& key = std::get<AgentEnding>(*asked_).life_key;
    out.mutable_agent_ended()->set_life_key(key.data(), key.size());
  }
  return true;
}

bool NodeOutbox::NextOf(Messages& messages, proto::FromAgent& out) {
  if (messages.empty()) return false;
  out.Swap(messages.front().get());
  messages.pop_front();
  return true;
}

}  // namespace muster::rendezvous
