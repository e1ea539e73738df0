#include "rendezvous/server/agent_sessions.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/job_key.h"
#include "proto/io/random_bytes.h"
#include "proto/io/wire_check.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/wire.h"
#include "rendezvous/server/stream_writer.h"

namespace muster::rendezvous {
namespace {

constexpr size_t kMaxStreams = 20000;

}  // namespace

// One stream, from its hand-shake to its end. It asks its owner by a posted task to remove it, and
// so never destroys itself while it runs: nearly every call here can end in End(), also those that
// come from the job loop in the middle of delivering to many.
class AgentSessions::Session final : public Attendee, private StreamSink {
 public:
  Session(AgentSessions& owner, StreamId id, std::string address, TlsPeer peer)
      : owner_(owner),
        id_(id),
        address_(std::move(address)),
        handshake_(owner.options_.owners, owner.options_.host_name, std::move(peer)),
        writer_(*this, owner.encoded_parts_),
        timer_(owner.loop_) {
    timer_.expires_after(absl::ToChronoNanoseconds(owner.options_.handshake_timeout));
    timer_.async_wait([mailbox = owner.mailbox_, &owner, id](const asio::error_code& error) {
      if (error) return;
      mailbox.Post([&owner, id] { owner.OnHandshakeTimeout(id); });
    });
  }
  ~Session() override {
    CountUnread(0);
    if (handshake_.is_admitted()) owner_.jobs_.Detach(handshake_.agent(), this);
  }

  void OnMessage(const proto::FromAgent& message) {
    if (writer_.IsEnding()) return;
    absl::Status status = Take(message);
    if (!status.ok()) {
      End(std::move(status));
      return;
    }
    if (message.has_watch() && IsMember()) TakeWatchWord(message.watch());
    Pump();
    ReadUnlessFull();
  }

  void OnHandshakeTimeout() {
    if (handshake_.is_admitted()) return;
    End(absl::DeadlineExceededError(
        absl::StrCat("it did not prove the secret within ",
                     absl::FormatDuration(owner_.options_.handshake_timeout))));
  }

  void OnWritten() {
    writer_.OnWritten();
    CountUnread(writer_.outbox().bytes());
    if (is_paused_) ReadUnlessFull();
  }

  void Deliver(const Directive& directive) override {
    writer_.Push(directive);
    Pump();
  }
  void Deliver(const StoreReply& reply) override {
    if (writer_.IsEnding()) return;
    if (!writer_.outbox().Push(reply)) {
      End(absl::ResourceExhaustedError(absl::StrCat("the agent has left ", writer_.outbox().bytes(),
                                                    " bytes of store replies unread")));
    }
    CountUnread(writer_.outbox().bytes());
    if (owner_.unread_bytes_of(handshake_.agent().job) > kMaxUnreadBytesPerJob) {
      End(absl::ResourceExhaustedError(absl::StrCat("the agents of this job leave more than ",
                                                    kMaxUnreadBytesPerJob,
                                                    " bytes of store replies unread")));
    }
    Pump();
  }
  void Deliver(const hangs::WatchOrder& order) override {
    writer_.outbox().Push(order);
    Pump();
  }
  void Deliver(const StopAnswer& answer) override {
    auto message = std::make_unique<proto::FromServer>();
    Encode(answer, message->mutable_answer());
    writer_.Greet(std::move(message));
    Pump();
  }
  void Deliver(const Inquiry& inquiry) override {
    writer_.outbox().Push(inquiry);
    Pump();
  }
  void Deliver(const InquiryAnswer& answer) override {
    if (writer_.IsEnding()) return;
    // An agent tells those at its socket that no answer came.
    if (!writer_.outbox().Push(answer) && !IsMember()) {
      End(absl::ResourceExhaustedError("the observer leaves its answers unread"));
    }
    Pump();
  }
  bool AnswersInquiries() const override { return handshake_.answers_inquiries(); }
  void Replaced() override {
    End(absl::AbortedError("another stream of this agent has taken over"));
  }

  // See AgentSessions::Drain.
  void Drain() {
    writer_.Drain();
    if (!writer_.HasToldEnd()) End(absl::UnavailableError("the server is ending"));
  }

 private:
  absl::Status Take(const proto::FromAgent& message) {
    switch (message.message_case()) {
      case proto::FromAgent::kHello:
        return TakeHello(message.hello());
      case proto::FromAgent::kProof:
        return TakeProof(message.proof());
      case proto::FromAgent::kReport:
        return TakeReport(message.report());
      case proto::FromAgent::kRenewal:
        return TakeRenewal(message.renewal());
      case proto::FromAgent::kStore:
        return TakeStoreRequest(message.store());
      case proto::FromAgent::kAsk:
        return TakeAsk(message.ask());
      case proto::FromAgent::kAgentEnded:
        return TakeAgentEnded(message.agent_ended());
      case proto::FromAgent::kInquiry:
        return TakeInquiry(message.inquiry());
      case proto::FromAgent::kInquiryReply:
        return TakeInquiryReply(message.inquiry_reply());
      case proto::FromAgent::MESSAGE_NOT_SET:
        if (message.has_watch()) return CheckAdmitted();
        break;
    }
    return absl::InvalidArgumentError(
        "a message of a kind that this version of muster does not know; install the same muster on "
        "every node");
  }

  absl::Status TakeHello(const proto::Hello& hello) {
    auto challenge = std::make_unique<proto::FromServer>();
    MUSTER_RETURN_IF_ERROR(
        handshake_.OnHello(hello, RandomBytes(kNonceBytes), challenge->mutable_challenge()));
    writer_.Greet(std::move(challenge));
    return absl::OkStatus();
  }

  absl::Status TakeProof(const proto::Proof& proof) {
    MUSTER_RETURN_IF_ERROR(handshake_.OnProof(proof));
    timer_.cancel();
    auto accepted = std::make_unique<proto::FromServer>();
    accepted->mutable_accepted()->set_term(owner_.options_.term.value());
    accepted->mutable_accepted()->set_answers_inquiries(true);
    const LeaseSettings& lease = owner_.jobs_.lease();
    accepted->mutable_accepted()->set_lease_us(EncodeDuration(lease.duration));
    accepted->mutable_accepted()->set_renew_interval_us(EncodeDuration(lease.renew_interval));
    writer_.Greet(std::move(accepted));
    owner_.jobs_.Attach(handshake_.agent(), this);
    return absl::OkStatus();
  }

  absl::Status TakeReport(const proto::Report& message) {
    MUSTER_RETURN_IF_ERROR(CheckAdmitted());
    MUSTER_ASSIGN_OR_RETURN(FencedReport fenced, Decode(message));
    if (fenced.from != handshake_.agent().agent) {
      return absl::InvalidArgumentError("a report of another incarnation than the hello's");
    }
    if (fenced.term > owner_.options_.term) {
      return absl::AbortedError(absl::StrCat(
          "this server is of term ", ToString(owner_.options_.term), ", older than the term ",
          ToString(fenced.term), " that the agent has heard of"));
    }
    last_report_ = std::move(fenced.report);
    owner_.jobs_.OnReport(handshake_.agent(), *last_report_);
    return absl::OkStatus();
  }

  absl::Status TakeRenewal(const proto::Renewal& message) {
    if (!last_report_) return absl::InvalidArgumentError("a renewal before the first report");
    last_report_->sequence = message.sequence();
    owner_.jobs_.OnReport(handshake_.agent(), *last_report_);
    return absl::OkStatus();
  }

  absl::Status TakeStoreRequest(const proto::StoreRequest& message) {
    MUSTER_RETURN_IF_ERROR(CheckAdmitted());
    absl::StatusOr<StoreRequest> request = Decode(message);
    if (request.ok()) {
      owner_.jobs_.OnStoreRequest(handshake_.agent(), *request);
    } else {
      Deliver(StoreReply{.request_id = message.request_id(), .status = request.status()});
    }
    return absl::OkStatus();
  }

  // What a newer version says, and is not known here, is no reason to lose its node.
  void TakeWatchWord(const proto::WatchWord& message) {
    absl::StatusOr<hangs::NodeWord> word = Decode(message);
    if (word.ok()) owner_.jobs_.OnWatchWord(handshake_.agent(), *std::move(word));
  }

  // The answer is the last that a person is told, who then ends the stream.
  absl::Status TakeAsk(const proto::Ask& message) {
    MUSTER_RETURN_IF_ERROR(CheckMayAsk());
    MUSTER_ASSIGN_OR_RETURN(const StopRequest request, Decode(message));
    owner_.jobs_.OnStopRequest(handshake_.agent(), request);
    return absl::OkStatus();
  }

  // The key proves it: nobody but the agent's own guardian has it.
  absl::Status TakeAgentEnded(const proto::AgentEnded& message) {
    MUSTER_RETURN_IF_ERROR(CheckMayAsk());
    Key life_key;
    if (message.life_key().size() != life_key.size()) {
      return absl::InvalidArgumentError("malformed life key");
    }
    std::copy(message.life_key().begin(), message.life_key().end(), life_key.begin());
    owner_.jobs_.OnAgentEnded(handshake_.agent(), IncarnationOf(life_key));
    return absl::OkStatus();
  }

  absl::Status CheckMayAsk() {
    if (!handshake_.is_admitted() || handshake_.role() != StreamRole::kPerson) {
      return absl::PermissionDeniedError("only a person may ask for a stop");
    }
    return std::exchange(has_asked_, true)
               ? absl::FailedPreconditionError("a second request on one stream")
               : absl::OkStatus();
  }

  // An observer may look at any job of its owner, an agent at its own.
  absl::Status TakeInquiry(const proto::Inquiry& message) {
    if (!handshake_.is_admitted() || handshake_.role() == StreamRole::kPerson) {
      return absl::PermissionDeniedError(
          "only an observer or an agent may ask what there is to see");
    }
    MUSTER_ASSIGN_OR_RETURN(Inquiry inquiry, Decode(message));
    if (IsMember()) inquiry.job.clear();
    owner_.jobs_.OnInquiry(handshake_.agent(), std::move(inquiry));
    return absl::OkStatus();
  }

  // One that cannot be read is the end of nothing: its waiters are told at the deadline.
  absl::Status TakeInquiryReply(const proto::InquiryReply& message) {
    MUSTER_RETURN_IF_ERROR(CheckAdmitted());
    absl::StatusOr<InquiryReply> reply = Decode(message);
    if (reply.ok()) owner_.jobs_.OnInquiryReply(handshake_.agent(), *std::move(reply));
    return absl::OkStatus();
  }

  bool IsMember() const {
    return handshake_.is_admitted() && handshake_.role() == StreamRole::kAgent;
  }

  // Fails unless an agent is admitted: the others are no members, and have no part in the store.
  absl::Status CheckAdmitted() const {
    if (!handshake_.is_admitted()) {
      return absl::UnauthenticatedError("the stream has not proven the secret");
    }
    return IsMember()
               ? absl::OkStatus()
               : absl::PermissionDeniedError("a person or an observer is not a member of a job");
  }

  // An agent that does not read its answers is not asked for more of its requests, so that a
  // stream's memory has a bound; OnWritten resumes.
  void ReadUnlessFull() {
    is_paused_ = !writer_.outbox().has_room();
    if (!is_paused_) owner_.service_->ReadNext(id_);
  }

  void CountUnread(size_t bytes) {
    if (!handshake_.is_admitted() || bytes == counted_bytes_) return;
    size_t& of_job = owner_.unread_bytes_of(handshake_.agent().job);
    of_job += bytes - counted_bytes_;  // modulo 2^64, like the difference
    counted_bytes_ = bytes;
    if (of_job == 0) owner_.unread_bytes_.erase(handshake_.agent().job);
  }

  void End(absl::Status status) {
    if (writer_.IsEnding()) return;
    if (!handshake_.is_admitted() && !writer_.IsDraining() && owner_.options_.on_refused) {
      owner_.options_.on_refused(address_, status);
    }
    writer_.End(std::move(status));
    Pump();
  }

  void Pump() {
    writer_.Pump();
    CountUnread(writer_.outbox().bytes());
  }

  void Write(proto::FromServer message) override {
    owner_.service_->Write(id_, std::move(message));
  }
  void Finish(const absl::Status& status) override {
    owner_.service_->Finish(id_, status);
    owner_.mailbox_.Post([&owner = owner_, id = id_] { owner.Remove(id); });
  }
  absl::Duration RenewInterval() override {
    return owner_.jobs_.RenewInterval(handshake_.agent().job);
  }

  AgentSessions& owner_;
  const StreamId id_;
  const std::string address_;
  ServerHandshake handshake_;
  std::optional<AgentReport> last_report_;  // a renewal refers to it
  StreamWriter writer_;
  size_t counted_bytes_ = 0;  // in AgentSessions::unread_bytes_
  bool is_paused_ = false;    // nothing is being read
  bool has_asked_ = false;    // of a person
  asio::steady_timer timer_;  // of the handshake
};

AgentSessions::AgentSessions(asio::io_context& loop, JobLoop& jobs, SessionOptions options)
    : loop_(loop), mailbox_(loop), jobs_(jobs), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<AgentSessions>> AgentSessions::Start(
    asio::io_context& loop, JobLoop& jobs, std::unique_ptr<ConnectionListener> listener,
    SessionOptions options) {
  std::unique_ptr<AgentSessions> self(new AgentSessions(loop, jobs, std::move(options)));
  AgentSessions* const s = self.get();
  MUSTER_ASSIGN_OR_RETURN(
      s->service_,
      RendezvousService::Start(
          loop, std::move(listener), s->options_.owners,
          {.tls = s->options_.tls, .handshake_timeout = s->options_.handshake_timeout},
          {.on_open = [s](StreamId id, std::string from,
                          TlsPeer peer) { s->OnOpen(id, from, std::move(peer)); },
           .on_message = [s](StreamId id, const proto::FromAgent& m) { s->OnMessage(id, m); },
           .on_written = [s](StreamId id) { s->OnWritten(id); },
           .on_end = [s](StreamId id) { s->Remove(id); },
           .on_wasted =
               [s](const std::string& peer, const absl::Status& why) {
                 if (s->options_.on_refused) s->options_.on_refused(peer, why);
               }}));
  return self;
}

AgentSessions::~AgentSessions() { mailbox_.Close(); }

void AgentSessions::OnOpen(StreamId id, const std::string& address, TlsPeer peer) {
  if (is_draining_ || sessions_.size() >= kMaxStreams) {
    service_->Finish(id, is_draining_
                             ? absl::UnavailableError("the server is ending")
                             : absl::ResourceExhaustedError("the server has too many streams"));
    return;
  }
  sessions_.emplace(id, std::make_unique<Session>(*this, id, address, std::move(peer)));
  service_->ReadNext(id);
}

void AgentSessions::OnMessage(StreamId id, const proto::FromAgent& message) {
  if (Session* session = Find(id); session != nullptr) session->OnMessage(message);
}

void AgentSessions::OnWritten(StreamId id) {
  if (Session* session = Find(id); session != nullptr) session->OnWritten();
}

void AgentSessions::OnHandshakeTimeout(StreamId id) {
  if (Session* session = Find(id); session != nullptr) session->OnHandshakeTimeout();
}

void AgentSessions::Remove(StreamId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  // Out of the map first: its end may have effects on other sessions.
  const std::unique_ptr<Session> ended = std::move(it->second);
  sessions_.erase(it);
  if (sessions_.empty() && on_drained_) mailbox_.Post(std::exchange(on_drained_, nullptr));
}

AgentSessions::Session* AgentSessions::Find(StreamId id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void AgentSessions::Drain(std::function<void()> on_drained) {
  is_draining_ = true;
  on_drained_ = std::move(on_drained);
  for (const auto& [id, session] : sessions_) session->Drain();
  if (sessions_.empty()) mailbox_.Post(std::exchange(on_drained_, nullptr));
}

}  // namespace muster::rendezvous
