#include "rendezvous/server/local_link.h"

#include <utility>

namespace muster::rendezvous {

LocalLink::LocalLink(asio::io_context& loop, std::weak_ptr<JobLoop> jobs, AgentKey key)
    : mailbox_(loop), jobs_(std::move(jobs)), key_(std::move(key)) {}

LocalLink::~LocalLink() {
  mailbox_.Close();
  Detach();
}

void LocalLink::Open(LinkListener listener) {
  listener_ = std::move(listener);
  is_open_ = true;
  if (const auto jobs = jobs_.lock()) jobs->Attach(key_, this);
  mailbox_.Post([this] {
    if (listener_.on_state)
      listener_.on_state(true, "attending the server of this process", absl::OkStatus());
  });
}

void LocalLink::SendReport(const AgentReport& report) {
  mailbox_.Post([this, report] {
    const auto jobs = jobs_.lock();
    if (is_open_ && jobs != nullptr) jobs->OnReport(key_, report);
  });
}

void LocalLink::SendStoreRequest(const StoreRequest& request) {
  mailbox_.Post([this, request] {
    const auto jobs = jobs_.lock();
    if (is_open_ && jobs != nullptr) {
      jobs->OnStoreRequest(key_, request);
    } else if (listener_.on_store_reply) {
      listener_.on_store_reply(
          {.request_id = request.request_id,
           .status = absl::UnavailableError("the server of this process has ended")});
    }
  });
}

void LocalLink::SendWatchWord(const hangs::NodeWord& word) {
  mailbox_.Post([this, word] {
    const auto jobs = jobs_.lock();
    if (is_open_ && jobs != nullptr) jobs->OnWatchWord(key_, word);
  });
}

void LocalLink::SendInquiry(const Inquiry& inquiry) {
  mailbox_.Post([this, inquiry] {
    const auto jobs = jobs_.lock();
    if (is_open_ && jobs != nullptr) {
      Inquiry of_own_job = inquiry;
      of_own_job.job.clear();
      jobs->OnInquiry(key_, std::move(of_own_job));
    } else if (listener_.on_inquiry_answer) {
      listener_.on_inquiry_answer(
          {.id = inquiry.id,
           .status = absl::UnavailableError("the server of this process has ended")});
    }
  });
}

void LocalLink::SendInquiryReply(const InquiryReply& reply) {
  mailbox_.Post([this, reply] {
    const auto jobs = jobs_.lock();
    if (is_open_ && jobs != nullptr) jobs->OnInquiryReply(key_, reply);
  });
}

void LocalLink::Close(absl::Duration /*linger*/, std::function<void()> on_closed) {
  // The close is posted behind what was sent before, which is thereby taken first.
  mailbox_.Post([this, on_closed = std::move(on_closed)] {
    Detach();
    listener_ = {};
    if (on_closed) on_closed();
  });
}

void LocalLink::Deliver(const Directive& directive) {
  mailbox_.Post([this, directive] {
    if (listener_.on_directive) listener_.on_directive(directive);
  });
}

void LocalLink::Deliver(const StoreReply& reply) {
  mailbox_.Post([this, reply] {
    if (listener_.on_store_reply) listener_.on_store_reply(reply);
  });
}

void LocalLink::Deliver(const hangs::WatchOrder& order) {
  mailbox_.Post([this, order] {
    if (listener_.on_watch_order) listener_.on_watch_order(order);
  });
}

void LocalLink::Deliver(const Inquiry& inquiry) {
  mailbox_.Post([this, inquiry] {
    if (listener_.on_inquiry) listener_.on_inquiry(inquiry);
  });
}

void LocalLink::Deliver(const InquiryAnswer& answer) {
  mailbox_.Post([this, answer] {
    if (listener_.on_inquiry_answer) listener_.on_inquiry_answer(answer);
  });
}

void LocalLink::Detach() {
  if (!std::exchange(is_open_, false)) return;
  if (const auto jobs = jobs_.lock()) jobs->Detach(key_, this);
}

}  // namespace muster::rendezvous
