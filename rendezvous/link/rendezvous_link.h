// The agent's way to the rendezvous: reports and store requests up, directives and replies down.
//
// Two kinds: GrpcLink (rendezvous/client/grpc_link.h) over one bidirectional stream, and the
// server's own LocalLink (rendezvous/server/local_link.h) for the agent in the same process.
#pragma once

#include <functional>
#include <string>

#include "proto/base/inquiry.h"
#include "proto/base/membership.h"
#include "proto/base/store_messages.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::rendezvous {

// Called on the loop thread, never from inside a call of the link.
struct LinkListener {
  std::function<void(Directive)> on_directive;
  std::function<void(StoreReply)> on_store_reply;
  std::function<void(hangs::WatchOrder)> on_watch_order;  // only after a summary was sent
  // The server asks what there is to see here: answered by SendInquiryReply.
  std::function<void(Inquiry)> on_inquiry;
  std::function<void(InquiryAnswer)> on_inquiry_answer;
  // The server says, each time before the link is up, what its leases are; their margin is the
  // agent's.
  std::function<void(absl::Duration lease, absl::Duration renew_interval)> on_lease;
  // `detail` says to whom, or why not, for people. `fatal` is set when trying again cannot help:
  // kPermissionDenied (another secret, not our job), kInvalidArgument, kResourceExhausted (no
  // threads to be had); the link has then given up. Never after it has been up once.
  std::function<void(bool up, std::string detail, absl::Status fatal)> on_state;
};

// Loop thread only.
class RendezvousLink {
 public:
  virtual ~RendezvousLink() = default;
  // Begins to connect, and connects again with back-off whenever the connection is lost, until
  // Close.
  virtual void Open(LinkListener listener) = 0;
  // Sends the newest report; while there is no connection only the newest is kept.
  virtual void SendReport(const AgentReport& report) = 0;
  // Answered by on_store_reply exactly once: with kUnavailable if the connection is lost before the
  // answer came.
  virtual void SendStoreRequest(const StoreRequest& request) = 0;
  // What this node's hang watch says, at once; but of a round's summaries after the first the
  // newest is kept, and goes with a report. What is unsent when the connection is lost is dropped:
  // the server asks again.
  virtual void SendWatchWord(const hangs::NodeWord& word) = 0;
  // Passes on what was asked at this agent's socket. It is answered by on_inquiry_answer, once:
  // with kUnavailable at once where there is no connection, or the server knows no inquiries; and
  // not at all if the connection is lost before the answer came.
  virtual void SendInquiry(const Inquiry& inquiry) = 0;
  // Dropped while there is no connection.
  virtual void SendInquiryReply(const InquiryReply& reply) = 0;
  // Tries for `linger` to send what is queued, then closes; on_closed follows. No other callback
  // comes after.
  virtual void Close(absl::Duration linger, std::function<void()> on_closed) = 0;
};

}  // namespace muster::rendezvous
