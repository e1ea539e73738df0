// RendezvousLink over one gRPC stream; its other end is rendezvous/server/rendezvous_service.h.
//
// A life of the link:
//   resolve the name -> one attempt per address (attend_stream.h): hello, challenge, proof,
//   accepted
//     -> up -> lost -> back-off -> resolve again
// Every wait has a deadline.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_set.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/backoff.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "proto/base/stop_request.h"
#include "proto/io/challenge.h"
#include "proto/io/credentials.h"
#include "proto/io/loop_mailbox.h"
#include "proto/io/user_secret.h"
#include "rendezvous/client/connect_failure.h"
#include "rendezvous/client/unsent_asks.h"
#include "rendezvous/link/rendezvous_link.h"

namespace muster::proto {
class FromAgent;
class FromServer;
}  // namespace muster::proto

namespace muster::rendezvous {

class AttendStream;

// Who is at our end.
enum class LinkRole { kAgent, kPerson, kObserver };

struct GrpcLinkOptions {
  std::string host;  // name or numeric address, IPv6 without brackets
  int port = 0;
  UserSecret secret;
  TlsMode tls = TlsMode::kOn;
  std::string run_id;
  LinkRole role = LinkRole::kAgent;
  Incarnation incarnation;
  std::string node_name;
  BackoffOptions backoff;
  uint64_t jitter_seed = 0;
  absl::Duration attempt_timeout = absl::Seconds(10);  // from the first packet to `accepted`
};

// Requests whose answer has not come yet; more, or more bytes, are answered with
// kResourceExhausted.
inline constexpr size_t kMaxStoreRequestsInFlight = 4096;
inline constexpr size_t kMaxUnsentWatchAnswers = 4;
inline constexpr size_t kMaxUnsentInquiries = 32;  // replies to the server's included
inline constexpr size_t kMaxUnsentStoreBytes = size_t{64} << 20;

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
  void SendWatchWord(const verdict::NodeWord& word) override;
  void SendInquiry(const Inquiry& inquiry) override;
  void SendInquiryReply(const InquiryReply& reply) override;
  void Close(absl::Duration linger, std::function<void()> on_closed) override;

  // A person's only request, or a guardian's, before Open. Sent on each new connection until it is
  // answered.
  void Ask(std::variant<StopRequest, AgentEnding> request,
           std::function<void(StopAnswer)> on_answer);

 private:
  enum class Phase {
    kIdle,
    kResolving,
    kGreeting,  // hello is on its way
    kProving,   // our proof is on its way
    kUp,
    kBackingOff,
    kGivenUp,
    kClosing,
    kClosed
  };

  void ResolveOnLoop();
  void OnResolvedOnLoop(const std::string& why_not, std::vector<asio::ip::tcp::endpoint> addresses);
  void TryNextAddressOnLoop();
  void StartAttemptOnLoop(const asio::ip::tcp::endpoint& address, TlsMode tls);
  void OnMessageOnLoop(const proto::FromServer& message);
  absl::Status TakeMessageOnLoop(const proto::FromServer& message);
  absl::Status OnChallengeOnLoop(const proto::FromServer& message);
  absl::Status OnAcceptedOnLoop(const proto::FromServer& message);
  absl::Status OnDirectiveOnLoop(const proto::FromServer& message);
  absl::Status OnRepeatOnLoop(const proto::FromServer& message);
  absl::Status OnStoreReplyOnLoop(const proto::FromServer& message);
  void OnWatchOrderOnLoop(const proto::FromServer& message);
  absl::Status OnAnswerOnLoop(const proto::FromServer& message);
  absl::Status OnInquiryAnswerOnLoop(const proto::FromServer& message);
  void OnInquiryOnLoop(const proto::FromServer& message);
  void PumpOnLoop();
  bool WriteReportOnLoop();
  void BreakOffOnLoop(absl::Status reason);
  void OnEndOnLoop(const asio::ip::tcp::endpoint& address, int code, const std::string& message);
  void FailedOnLoop(const ConnectFailure& failure);
  void BackOffOnLoop();
  void FailStoreRequestsOnLoop();
  void TellStateOnLoop(bool up, const std::string& detail, const absl::Status& fatal);
  void ArmTimerOnLoop(absl::Duration delay, std::function<void()> task);
  void FinishCloseOnLoop();
  double NextJitter();

  // Constant after construction.
  asio::io_context& loop_;
  const GrpcLinkOptions options_;
  const Key job_key_;
  const LoopMailbox mailbox_;

  // Loop thread only.
  LinkListener listener_;
  Phase phase_ = Phase::kIdle;
  asio::steady_timer timer_;  // of the phase: the attempt's time-out, back-off or linger
  uint64_t timer_id_ = 0;     // of the task that the timer may run; older ones are dropped
  asio::ip::tcp::resolver resolver_;
  std::vector<asio::ip::tcp::endpoint> addresses_;  // not tried yet, last first
  uint64_t jitter_state_;
  int backoff_step_ = 0;
  int refusals_ = 0;                        // since the last success
  bool was_up_ = false;                     // once accepted, nothing is fatal any more
  ConnectAttempt about_;                    // the attempt, for messages
  ChallengeTranscript transcript_;          // of the attempt
  std::optional<absl::Status> broken_off_;  // why we ended the stream ourselves
  std::unique_ptr<AttendStream> stream_;
  std::unique_ptr<proto::FromAgent> pending_proof_;
  bool is_half_closed_ = false;
  ServerTerm newest_term_;
  std::string last_detail_ = "not opened";
  std::string last_told_;

  std::optional<AgentReport> newest_report_;
  bool has_unsent_report_ = false;
  // This stream's report and directive, to which a renewal and a repeat refer.
  std::optional<AgentReport> sent_report_;
  std::optional<Directive> last_directive_;
  MonoTime sent_at_;               // the newest report or renewal
  absl::Duration renew_interval_;  // as the server wants it; zero until it has said so
  std::optional<verdict::NodeWord> newest_summary_;  // since the last that was sent
  Round summarized_ = kNoRound;                      // of the last summary
  // That nobody has asked for, each with a report at once: a server that knows no words reads that.
  std::deque<verdict::NodeWord> urgent_words_;
  std::deque<std::unique_ptr<proto::FromAgent>> unsent_answers_;  // to orders of the watch
  // Encoded, since most of their memory is that of keys and values.
  std::deque<std::unique_ptr<proto::FromAgent>> unsent_requests_;
  size_t unsent_bytes_ = 0;
  absl::btree_set<uint64_t> unanswered_;
  PersonsAsk stop_asked_;
  UnsentInquiries inquiries_;
  std::function<void()> on_closed_;
};

}  // namespace muster::rendezvous
