// A link that goes nowhere: remembers what the agent tells, and closes when the test says so.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "rendezvous/link/rendezvous_link.h"

namespace muster::agent {

class FakeLink : public rendezvous::RendezvousLink {
 public:
  void Open(rendezvous::LinkListener) override {}
  void SendReport(const AgentReport&) override {}
  void SendStoreRequest(const StoreRequest&) override {}
  void SendWatchWord(const hangs::NodeWord&) override {}
  void SendInquiry(const Inquiry& inquiry) override { asked.push_back(inquiry); }
  void SendInquiryReply(const InquiryReply& reply) override { told.push_back(reply); }
  void Close(absl::Duration, std::function<void()> then) override { on_closed = std::move(then); }

  std::vector<Inquiry> asked;
  std::vector<InquiryReply> told;
  std::function<void()> on_closed;
};

}  // namespace muster::agent
