// The way to a server in the same process: no port, no thread, no gRPC.
#pragma once

#include <functional>
#include <memory>

#include "asio/io_context.hpp"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/link/rendezvous_link.h"
#include "rendezvous/server/job_loop.h"

namespace muster::rendezvous {

// Loop thread only. The job loop may end first: the link is then down for good.
class LocalLink final : public RendezvousLink, private Attendee {
 public:
  LocalLink(asio::io_context& loop, std::weak_ptr<JobLoop> jobs, AgentKey key);
  ~LocalLink() override;
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;

  void Open(LinkListener listener) override;
  void SendReport(const AgentReport& report) override;
  void SendStoreRequest(const StoreRequest& request) override;
  void SendWatchWord(const hangs::NodeWord& word) override;
  void SendInquiry(const Inquiry& inquiry) override;
  void SendInquiryReply(const InquiryReply& reply) override;
  void Close(absl::Duration linger, std::function<void()> on_closed) override;

 private:
  void Deliver(const Directive& directive) override;
  void Deliver(const StoreReply& reply) override;
  void Deliver(const hangs::WatchOrder& order) override;
  void Deliver(const StopAnswer&) override {}  // an agent asks for nothing that a person may
  void Deliver(const Inquiry& inquiry) override;
  void Deliver(const InquiryAnswer& answer) override;
  bool AnswersInquiries() const override { return true; }
  void Replaced() override {}
  void Detach();

  // Constant after construction.
  const LoopMailbox mailbox_;
  // The server may be destroyed before the agent's link to it.
  const std::weak_ptr<JobLoop> jobs_;
  const AgentKey key_;

  // Loop thread only.
  LinkListener listener_;
  bool is_open_ = false;
};

}  // namespace muster::rendezvous
