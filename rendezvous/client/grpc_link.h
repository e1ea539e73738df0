// RendezvousLink over one gRPC stream; its other end is rendezvous/server/rendezvous_service.h.
//
// A life of the link:
//   resolve the name (address_list.h)
//     -> one attempt per address (link_attempt.h, over attend_stream.h): hello, challenge, proof,
//        accepted
//     -> up: what the node says waits in node_outbox.h; directives come by directive_inbox.h
//     -> lost -> a pause (retry_policy.h) -> resolve again
// Every wait has a deadline.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/client/address_list.h"
#include "rendezvous/client/connect_failure.h"
#include "rendezvous/client/directive_inbox.h"
#include "rendezvous/client/link_attempt.h"
#include "rendezvous/client/link_options.h"
#include "rendezvous/client/link_timer.h"
#include "rendezvous/client/node_outbox.h"
#include "rendezvous/client/retry_policy.h"
#include "rendezvous/link/rendezvous_link.h"

namespace muster::proto {
class FromServer;
}  // namespace muster::proto

namespace muster::rendezvous {

class AttendStream;

// Loop thread only. The loop must be kept running (a work guard) until on_closed, or until the link
// is destroyed: gRPC's threads are no work of the loop. Destroying an open link breaks the stream
// off.
class GrpcLink final : public RendezvousLink {
 public:
  // `loop` must outlive the link.
  GrpcLink(asio::io_context& loop, GrpcLinkOptions options);
  ~GrpcLink() override;
  GrpcLink(const GrpcLink&) = delete;
  GrpcLink& operator=(const GrpcLink&) = delete;

  void Open(LinkListener listener) override;
  void SendReport(const AgentReport& report) override;
  void SendStoreRequest(const StoreRequest& request) override;
  void SendWatchWord(const hangs::NodeWord& word) override;
  void SendInquiry(const Inquiry& inquiry) override;
  void SendInquiryReply(const InquiryReply& reply) override;
  void Close(absl::Duration linger, std::function<void()> on_closed) override;

  // A person's only request, or a guardian's, before Open. Sent on each new connection until it is
  // answered.
  void Ask(PersonsRequest request, std::function<void(StopAnswer)> on_answer);

 private:
  enum class Phase {
    kIdle,
    kResolving,
    kGreeting,  // hello is on its way
    kProving,   // our proof is on its way
    kUp,
    kBackingOff,
    kGivenUp,
    kClosing,     // what is queued is being sent
    kHalfClosed,  // all is sent; the server ends the stream
    kClosed
  };
  bool is_closing() const { return phase_ == Phase::kClosing || phase_ == Phase::kHalfClosed; }

  void ResolveOnLoop();
  void OnResolvedOnLoop(const std::string& why_not, std::vector<asio::ip::tcp::endpoint> addresses);
  void TryNextAddressOnLoop();
  void StartAttemptOnLoop(const asio::ip::tcp::endpoint& address, TlsMode tls);
  void OnMessageOnLoop(const proto::FromServer& message);
  absl::Status TakeMessageOnLoop(const proto::FromServer& message);
  void TellLeaseOnLoop(const proto::FromServer& message);
  absl::Status TakeMessageWhileUpOnLoop(const proto::FromServer& message);
  absl::Status OnChallengeOnLoop(const proto::FromServer& message);
  absl::Status OnAcceptedOnLoop(const proto::FromServer& message);
  absl::Status OnDirectiveOnLoop(const proto::FromServer& message);
  absl::Status OnRepeatOnLoop(const proto::FromServer& message);
  absl::Status OnStoreReplyOnLoop(const proto::FromServer& message);
  void OnWatchOrderOnLoop(const proto::FromServer& message);
  absl::Status OnAnswerOnLoop(const proto::FromServer& message);
  absl::Status OnInquiryAnswerOnLoop(const proto::FromServer& message);
  void OnInquiryOnLoop(const proto::FromServer& message);
  absl::Status Unexpected() const;
  absl::Status NotConnected() const;
  void PumpOnLoop();
  void BreakOffOnLoop(absl::Status reason);
  void OnEndOnLoop(const asio::ip::tcp::endpoint& address, int code, const std::string& message);
  void FailedOnLoop(const ConnectFailure& failure);
  void FailStoreRequestsOnLoop();
  void TellStateOnLoop(bool up, const std::string& detail, const absl::Status& fatal);
  void FinishCloseOnLoop();

  asio::io_context& loop_;
  const GrpcLinkOptions options_;
  const LoopMailbox mailbox_;

  LinkListener listener_;
  Phase phase_ = Phase::kIdle;
  LinkTimer timer_;  // of the phase: the attempt's time-out, back-off or linger
  AddressList addresses_;
  RetryPolicy retry_policy_;
  std::optional<LinkAttempt> attempt_;  // the last
  std::unique_ptr<AttendStream> stream_;
  DirectiveInbox directives_;
  NodeOutbox outbox_;
  std::string last_detail_ = "not opened";
  std::string last_told_;
  std::function<void()> on_closed_;
};

}  // namespace muster::rendezvous
