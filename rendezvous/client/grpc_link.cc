#include "rendezvous/client/grpc_link.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/client/attend_stream.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

GrpcLink::GrpcLink(asio::io_context& loop, GrpcLinkOptions options)
    : loop_(loop),
      options_(std::move(options)),
      mailbox_(loop),
      timer_(loop, mailbox_),
      addresses_(loop, mailbox_),
      retry_policy_(options_.backoff, options_.jitter_seed),
      outbox_(options_.incarnation) {}

GrpcLink::~GrpcLink() { mailbox_.Close(); }

void GrpcLink::Open(LinkListener listener) {
  MUSTER_CHECK(phase_ == Phase::kIdle);
  listener_ = std::move(listener);
  mailbox_.Post([this] {
    if (phase_ != Phase::kIdle) return;
    if (const absl::Status threads = CheckCanStartThreads(); !threads.ok()) {
      phase_ = Phase::kGivenUp;
      TellStateOnLoop(false, std::string(threads.message()), threads);
      return;
    }
    ResolveOnLoop();
  });
}

void GrpcLink::Ask(PersonsRequest request, std::function<void(StopAnswer)> on_answer) {
  outbox_.Ask(std::move(request), std::move(on_answer));
}

void GrpcLink::SendReport(const AgentReport& report) {
  outbox_.reports().Put(report);
  PumpOnLoop();
}

absl::Status GrpcLink::NotConnected() const {
  if (phase_ == Phase::kUp) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("there is no connection to the rendezvous: ", last_detail_));
}

void GrpcLink::SendStoreRequest(const StoreRequest& request) {
  absl::Status put = NotConnected();
  if (put.ok()) put = outbox_.store().Put(request);
  if (put.ok()) return PumpOnLoop();
  mailbox_.Post([this, reply = StoreReply{.request_id = request.request_id, .status = put}] {
    if (listener_.on_store_reply) listener_.on_store_reply(reply);
  });
}

void GrpcLink::SendWatchWord(const hangs::NodeWord& word) {
  const bool is_asked_for = !std::holds_alternative<hangs::NodeSummary>(word) &&
                            !std::holds_alternative<hangs::RankAborted>(word);
  const bool is_up = phase_ == Phase::kUp;
  if (!is_asked_for) {
    outbox_.reports().PutWord(word, is_up);
  } else if (is_up) {
    outbox_.PutAnswer(word);
  }
  PumpOnLoop();
}

void GrpcLink::SendInquiry(const Inquiry& inquiry) {
  absl::Status put = NotConnected();
  if (put.ok()) put = outbox_.Put(inquiry);
  if (put.ok()) return PumpOnLoop();
  mailbox_.Post([this, answer = InquiryAnswer{.id = inquiry.id, .status = put}] {
    if (listener_.on_inquiry_answer) listener_.on_inquiry_answer(answer);
  });
}

void GrpcLink::SendInquiryReply(const InquiryReply& reply) {
  if (phase_ != Phase::kUp) return;
  outbox_.Put(reply);
  PumpOnLoop();
}

void GrpcLink::Close(absl::Duration linger, std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  listener_ = {};
  if (phase_ != Phase::kUp) {
    stream_.reset();
    FinishCloseOnLoop();
    return;
  }
  phase_ = Phase::kClosing;
  timer_.Arm(linger, [this] {
    stream_.reset();
    FinishCloseOnLoop();
  });
  PumpOnLoop();
}

void GrpcLink::FinishCloseOnLoop() {
  phase_ = Phase::kClosed;
  timer_.Disarm();
  addresses_.Cancel();
  mailbox_.Post([this] {
    // Moved out, since the callee may destroy this link.
    const auto on_closed = std::move(on_closed_);
    if (on_closed) on_closed();
  });
}

void GrpcLink::ResolveOnLoop() {
  phase_ = Phase::kResolving;
  const auto on_answer = [this](const std::string& why,
                                std::vector<asio::ip::tcp::endpoint> addresses) {
    if (phase_ == Phase::kResolving) OnResolvedOnLoop(why, std::move(addresses));
  };
  if (addresses_.Resolve(options_.host, options_.port, on_answer)) return TryNextAddressOnLoop();
  timer_.Arm(options_.attempt_timeout,
             [this] { OnResolvedOnLoop("no answer from the name service", {}); });
}

void GrpcLink::OnResolvedOnLoop(const std::string& why_not,
                                std::vector<asio::ip::tcp::endpoint> addresses) {
  if (addresses.empty()) {
    FailedOnLoop({FailureKind::kRetry,
                  absl::StrCat("cannot resolve ", options_.host, ": ", why_not), absl::OkStatus()});
    return;
  }
  addresses_.Fill(std::move(addresses));
  TryNextAddressOnLoop();
}

void GrpcLink::TryNextAddressOnLoop() {
  if (const auto address = addresses_.Next()) return StartAttemptOnLoop(*address, options_.tls);
  phase_ = Phase::kBackingOff;
  timer_.Arm(retry_policy_.NextPause(), [this] { ResolveOnLoop(); });
}

void GrpcLink::StartAttemptOnLoop(const asio::ip::tcp::endpoint& address, TlsMode tls) {
  phase_ = Phase::kGreeting;
  attempt_.emplace(options_, address, tls);
  stream_ = std::make_unique<AttendStream>(
      loop_, address, options_.secret.secret, tls,
      AttendEvents{
          .on_message = [this](const proto::FromServer& m) { OnMessageOnLoop(m); },
          .on_written = [this] { PumpOnLoop(); },
          .on_end = [this, address](int code,
                                    const std::string& m) { OnEndOnLoop(address, code, m); }});
  proto::FromAgent hello;
  attempt_->SayHello(options_, hello);
  stream_->Write(hello);
  timer_.Arm(options_.attempt_timeout, [this] {
    BreakOffOnLoop(absl::UnavailableError(
        absl::StrCat("no answer from ", attempt_->endpoint(), " (", attempt_->address(),
                     ") within ", absl::FormatDuration(options_.attempt_timeout),
                     "; if torchrun was started there, start every node with muster")));
  });
}

void GrpcLink::OnMessageOnLoop(const proto::FromServer& message) {
  absl::Status status = TakeMessageOnLoop(message);
  if (!status.ok()) BreakOffOnLoop(std::move(status));
  PumpOnLoop();
  if (stream_ != nullptr) stream_->ReadNext();
}

absl::Status GrpcLink::TakeMessageOnLoop(const proto::FromServer& message) {
  switch (message.message_case()) {
    case proto::FromServer::kChallenge:
      return OnChallengeOnLoop(message);
    case proto::FromServer::kAccepted:
      return OnAcceptedOnLoop(message);
    case proto::FromServer::kInquiryAnswer:
      return OnInquiryAnswerOnLoop(message);
    case proto::FromServer::kInquiry:
      OnInquiryOnLoop(message);
      return absl::OkStatus();
    case proto::FromServer::MESSAGE_NOT_SET:
      if (!message.has_watch()) return Unexpected();
      OnWatchOrderOnLoop(message);
      return absl::OkStatus();
    default:
      if (is_closing()) return absl::OkStatus();
      return phase_ == Phase::kUp ? TakeMessageWhileUpOnLoop(message) : Unexpected();
  }
}

absl::Status GrpcLink::TakeMessageWhileUpOnLoop(const proto::FromServer& message) {
  switch (message.message_case()) {
    case proto::FromServer::kDirective:
      return OnDirectiveOnLoop(message);
    case proto::FromServer::kRepeat:
      return OnRepeatOnLoop(message);
    case proto::FromServer::kStore:
      return OnStoreReplyOnLoop(message);
    case proto::FromServer::kAnswer:
      return OnAnswerOnLoop(message);
    default:
      return Unexpected();
  }
}

absl::Status GrpcLink::Unexpected() const {
  return absl::InvalidArgumentError(
      absl::StrCat("the server at ", attempt_->endpoint(),
                   " sent an unexpected message: install the same Muster on both"));
}

absl::Status GrpcLink::OnChallengeOnLoop(const proto::FromServer& message) {
  if (phase_ != Phase::kGreeting) return Unexpected();
  MUSTER_RETURN_IF_ERROR(attempt_->TakeChallenge(message.challenge()));
  phase_ = Phase::kProving;
  return absl::OkStatus();
}

absl::Status GrpcLink::OnAcceptedOnLoop(const proto::FromServer& message) {
  if (phase_ != Phase::kProving) return Unexpected();
  MUSTER_RETURN_IF_ERROR(
      directives_.BeginStream(ServerTerm(message.accepted().term()), attempt_->endpoint()));
  phase_ = Phase::kUp;
  timer_.Disarm();
  attempt_->MarkAccepted();
  retry_policy_.NoteAccepted();
  outbox_.BeginStream(message.accepted().answers_inquiries());
  TellLeaseOnLoop(message);
  TellStateOnLoop(true, absl::StrCat("attending ", attempt_->endpoint()), absl::OkStatus());
  return absl::OkStatus();
}

void GrpcLink::TellLeaseOnLoop(const proto::FromServer& message) {
  const absl::Duration lease = absl::Microseconds(message.accepted().lease_us());
  const absl::Duration renewal = absl::Microseconds(message.accepted().renew_interval_us());
  const bool is_told = absl::ZeroDuration() < renewal && renewal < lease;
  if (is_told && listener_.on_lease) listener_.on_lease(lease, renewal);
}

absl::Status GrpcLink::OnDirectiveOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(std::optional<Directive> directive,
                          directives_.Take(message.directive()));
  if (!directive) return absl::OkStatus();
  retry_policy_.NoteDirective();
  outbox_.reports().RenewEvery(absl::Microseconds(message.renew_interval_us()));
  if (listener_.on_directive) listener_.on_directive(*std::move(directive));
  return absl::OkStatus();
}

absl::Status GrpcLink::OnRepeatOnLoop(const proto::FromServer& message) {
  std::optional<Directive> directive = directives_.Take(message.repeat());
  if (!directive) return Unexpected();
  outbox_.reports().RenewEvery(absl::Microseconds(message.renew_interval_us()));
  if (listener_.on_directive) listener_.on_directive(*std::move(directive));
  return absl::OkStatus();
}

absl::Status GrpcLink::OnStoreReplyOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(StoreReply reply, Decode(message.store()));
  if (!outbox_.store().TakeAnswered(reply.request_id)) return absl::OkStatus();
  if (listener_.on_store_reply) listener_.on_store_reply(std::move(reply));
  return absl::OkStatus();
}

// What a newer version says, and is not known here, is no reason to leave it.
void GrpcLink::OnWatchOrderOnLoop(const proto::FromServer& message) {
  absl::StatusOr<hangs::WatchOrder> order = Decode(message.watch());
  if (phase_ == Phase::kUp && order.ok() && listener_.on_watch_order) {
    listener_.on_watch_order(*std::move(order));
  }
}

absl::Status GrpcLink::OnAnswerOnLoop(const proto::FromServer& message) {
  if (!outbox_.awaits_answer()) return Unexpected();
  MUSTER_ASSIGN_OR_RETURN(StopAnswer answer, Decode(message.answer()));
  outbox_.TakeAnswer(std::move(answer));
  return absl::OkStatus();
}

absl::Status GrpcLink::OnInquiryAnswerOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(InquiryAnswer answer, Decode(message.inquiry_answer()));
  if (listener_.on_inquiry_answer) listener_.on_inquiry_answer(std::move(answer));
  return absl::OkStatus();
}

// What a newer version asks, and is not known here, is no reason to leave it.
void GrpcLink::OnInquiryOnLoop(const proto::FromServer& message) {
  absl::StatusOr<Inquiry> inquiry = Decode(message.inquiry());
  if (phase_ == Phase::kUp && inquiry.ok() && listener_.on_inquiry) {
    listener_.on_inquiry(*std::move(inquiry));
  }
}

void GrpcLink::PumpOnLoop() {
  if (stream_ == nullptr || stream_->is_writing()) return;
  proto::FromAgent message;
  if (attempt_->NextProof(message)) return stream_->Write(message);
  if (phase_ != Phase::kUp && phase_ != Phase::kClosing) return;
  if (outbox_.Next(MonoNow(), directives_.term(), message)) return stream_->Write(message);
  if (phase_ != Phase::kClosing) return;
  phase_ = Phase::kHalfClosed;
  stream_->HalfClose();
}

// The end comes through OnEndOnLoop like any other.
void GrpcLink::BreakOffOnLoop(absl::Status reason) {
  attempt_->BreakOff(std::move(reason));
  if (stream_ != nullptr) stream_->Cancel();
}

void GrpcLink::OnEndOnLoop(const asio::ip::tcp::endpoint& address, int code,
                           const std::string& message) {
  stream_.reset();
  outbox_.EndStream();
  if (is_closing()) {
    FinishCloseOnLoop();
    return;
  }
  const ConnectFailure failure = attempt_->WhyItEnded(code, message);
  if (failure.kind == FailureKind::kCertificate) return StartAttemptOnLoop(address, TlsMode::kLook);
  FailedOnLoop(failure);
}

void GrpcLink::FailedOnLoop(const ConnectFailure& failure) {
  timer_.Disarm();  // the attempt's time-out is over with the attempt
  const bool gives_up = retry_policy_.GivesUp(failure.kind);
  phase_ = gives_up ? Phase::kGivenUp : Phase::kBackingOff;
  last_detail_ = failure.detail;
  FailStoreRequestsOnLoop();
  if (!gives_up) TryNextAddressOnLoop();
  TellStateOnLoop(false, failure.detail, gives_up ? failure.fatal : absl::OkStatus());
}

void GrpcLink::FailStoreRequestsOnLoop() {
  for (const uint64_t id : outbox_.store().GiveUp()) {
    if (!listener_.on_store_reply) return;
    listener_.on_store_reply({.request_id = id,
                              .status = absl::UnavailableError(
                                  absl::StrCat("the rendezvous was lost: ", last_detail_))});
  }
}

void GrpcLink::TellStateOnLoop(bool up, const std::string& detail, const absl::Status& fatal) {
  const std::string told = absl::StrCat(up, detail, fatal.ToString());
  if (std::exchange(last_told_, told) == told) return;
  if (listener_.on_state) listener_.on_state(up, detail, fatal);
}

}  // namespace muster::rendezvous
