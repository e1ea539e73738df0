// All that a node has to say to its server, in the order of its urgency.
//
// Threads: one at a time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "proto/base/ids.h"
#include "proto/base/inquiry.h"
#include "proto/base/mono_time.h"
#include "proto/base/stop_request.h"
#include "proto/io/job_key.h"
#include "rendezvous/client/report_outbox.h"
#include "rendezvous/client/store_outbox.h"

namespace muster::rendezvous {

// The agent of this life key has ended, and all of its workers with it.
struct AgentEnding {
  Key life_key{};
};

// The only request of a person, or of the guardian of an agent that was killed.
using PersonsRequest = std::variant<StopRequest, AgentEnding>;

inline constexpr size_t kMaxUnsentInquiries = 32;  // replies to the server's included

class NodeOutbox {
 public:
  explicit NodeOutbox(Incarnation incarnation);
  ~NodeOutbox();

  // A stream is accepted, by a server that knows inquiries or does not. At its end what was said to
  // this server alone is dropped.
  void BeginStream(bool knows_inquiries);
  void EndStream();

  ReportOutbox& reports() { return reports_; }
  StoreOutbox& store() { return store_; }

  // An answer to an order of the server's hang watch; dropped where too many wait.
  void PutAnswer(const hangs::NodeWord& word);
  // Errors: kUnavailable: the server knows no inquiries, or too many wait.
  absl::Status Put(const Inquiry& inquiry);
  // The reply is dropped where too many wait.
  void Put(const InquiryReply& reply);
  // The request is said on each new stream until it is answered.
  void Ask(PersonsRequest request, std::function<void(StopAnswer)> on_answer);
  bool awaits_answer() const { return asked_.has_value(); }
  void TakeAnswer(StopAnswer answer);

  // Fills in the next message. False: there is none.
  bool Next(MonoTime now, ServerTerm term, proto::FromAgent& out);

 private:
  using Messages = std::deque<std::unique_ptr<proto::FromAgent>>;
  bool NextAsk(proto::FromAgent& out);
  static bool NextOf(Messages& messages, proto::FromAgent& out);

  const Incarnation incarnation_;
  ReportOutbox reports_;
  StoreOutbox store_;
  Messages answers_;
  Messages inquiries_;  // and replies
  bool knows_inquiries_ = false;
  std::optional<PersonsRequest> asked_;
  bool is_ask_unsent_ = false;
  std::function<void(StopAnswer)> on_answer_;
};

}  // namespace muster::rendezvous
