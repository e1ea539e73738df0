#include "rendezvous/client/grpc_link.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "proto/io/job_key.h"
#include "proto/io/random_bytes.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/client/attend_stream.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/renewal.h"
#include "rendezvous/link/watch_wire.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

// One refusal may be a server that is just starting or ending.
constexpr int kMaxSecretRefusals = 3;
constexpr int kMaxStrangers = 5;
// A report that comes this much before its time renews the lease too: the next one is an interval
// of the agent away.
constexpr absl::Duration kRenewEarly = absl::Seconds(1);

int TriesBeforeGivingUp(FailureKind kind) {
  switch (kind) {
    case FailureKind::kSecret:
      return kMaxSecretRefusals;
    case FailureKind::kNotMuster:
      return kMaxStrangers;
    default:
      return 1;
  }
}

proto::Role RoleOnTheWire(LinkRole role) {
  return role == LinkRole::kPerson     ? proto::ROLE_PERSON
         : role == LinkRole::kObserver ? proto::ROLE_OBSERVER
                                       : proto::ROLE_AGENT;
}

ConnectFailure AsFailure(const absl::Status& status) {
  ConnectFailure failure{FailureKind::kRetry, std::string(status.message()), absl::OkStatus()};
  if (absl::IsPermissionDenied(status)) failure.kind = FailureKind::kSecret;
  if (absl::IsInvalidArgument(status)) failure.kind = FailureKind::kNotMuster;
  if (failure.kind != FailureKind::kRetry) failure.fatal = status;
  return failure;
}

}  // namespace

GrpcLink::GrpcLink(asio::io_context& loop, GrpcLinkOptions options)
    : loop_(loop),
      options_(std::move(options)),
      job_key_(DeriveJobKey(options_.secret.secret, options_.run_id)),
      mailbox_(loop),
      timer_(loop),
      resolver_(loop),
      jitter_state_(options_.jitter_seed) {}

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

void GrpcLink::Ask(std::variant<StopRequest, AgentEnding> request,
                   std::function<void(StopAnswer)> on_answer) {
  stop_asked_.request = std::move(request);
  stop_asked_.on_answer = std::move(on_answer);
}

void GrpcLink::SendReport(const AgentReport& report) {
  newest_report_ = report;
  has_unsent_report_ = true;
  PumpOnLoop();
}

void GrpcLink::SendStoreRequest(const StoreRequest& request) {
  const bool is_full =
      unanswered_.size() >= kMaxStoreRequestsInFlight || unsent_bytes_ >= kMaxUnsentStoreBytes;
  if (phase_ == Phase::kUp && !is_full) {
    unanswered_.insert(request.request_id);
    auto message = std::make_unique<proto::FromAgent>();
    Encode(request, message->mutable_store());
    unsent_bytes_ += message->ByteSizeLong();
    unsent_requests_.push_back(std::move(message));
    PumpOnLoop();
    return;
  }
  StoreReply reply{.request_id = request.request_id};
  reply.status = is_full ? absl::ResourceExhaustedError(absl::StrCat(
                               unanswered_.size(), " store requests of this node, ", unsent_bytes_,
                               " bytes of them not sent yet, wait for an answer already"))
                         : absl::UnavailableError(absl::StrCat(
                               "there is no connection to the rendezvous: ", last_detail_));
  mailbox_.Post([this, reply] {
    if (listener_.on_store_reply) listener_.on_store_reply(reply);
  });
}

void GrpcLink::SendWatchWord(const verdict::NodeWord& word) {
  const auto* summary = std::get_if<verdict::NodeSummary>(&word);
  const bool is_asked_for =
      summary == nullptr && !std::holds_alternative<verdict::RankAborted>(word);
  if (!is_asked_for) {
    if (summary != nullptr && std::exchange(summarized_, summary->round) == summary->round) {
      newest_summary_ = word;
    } else if (phase_ == Phase::kUp && urgent_words_.size() < kMaxUnsentWatchAnswers) {
      urgent_words_.push_back(word);
      has_unsent_report_ = newest_report_.has_value();
      PumpOnLoop();
    }
    return;
  }
  if (phase_ != Phase::kUp || unsent_answers_.size() >= kMaxUnsentWatchAnswers) return;
  auto message = std::make_unique<proto::FromAgent>();
  Encode(word, message->mutable_watch());
  unsent_answers_.push_back(std::move(message));
  PumpOnLoop();
}

void GrpcLink::SendInquiry(const Inquiry& inquiry) {
  const bool is_up = phase_ == Phase::kUp;
  if (is_up && inquiries_.are_known && inquiries_.unsent.size() < kMaxUnsentInquiries) {
    auto message = std::make_unique<proto::FromAgent>();
    Encode(inquiry, message->mutable_inquiry());
    inquiries_.unsent.push_back(std::move(message));
    PumpOnLoop();
    return;
  }
  const std::string why =
      !is_up ? absl::StrCat("there is no connection to the rendezvous: ", last_detail_)
      : !inquiries_.are_known ? "the rendezvous is of an older muster, and cannot be asked"
                              : "too much is being asked of the rendezvous already";
  mailbox_.Post([this, id = inquiry.id, why] {
    if (listener_.on_inquiry_answer) {
      listener_.on_inquiry_answer({.id = id, .status = absl::UnavailableError(why)});
    }
  });
}

void GrpcLink::SendInquiryReply(const InquiryReply& reply) {
  if (phase_ != Phase::kUp || inquiries_.unsent.size() >= kMaxUnsentInquiries) return;
  auto message = std::make_unique<proto::FromAgent>();
  Encode(reply, message->mutable_inquiry_reply());
  inquiries_.unsent.push_back(std::move(message));
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
  ArmTimerOnLoop(linger, [this] {
    stream_.reset();
    FinishCloseOnLoop();
  });
  PumpOnLoop();
}

void GrpcLink::FinishCloseOnLoop() {
  phase_ = Phase::kClosed;
  timer_.cancel();
  resolver_.cancel();
  mailbox_.Post([this] {
    // Moved out, since the callee may destroy this link.
    const auto on_closed = std::move(on_closed_);
    if (on_closed) on_closed();
  });
}

void GrpcLink::ArmTimerOnLoop(absl::Duration delay, std::function<void()> task) {
  timer_.expires_after(absl::ToChronoNanoseconds(delay));
  timer_.async_wait(
      [mailbox = mailbox_, id = ++timer_id_, this, task](const asio::error_code& error) {
        if (error) return;
        mailbox.Post([this, id, task] {
          if (id == timer_id_) task();
        });
      });
}

void GrpcLink::ResolveOnLoop() {
  phase_ = Phase::kResolving;
  addresses_.clear();
  asio::error_code error;
  const asio::ip::address literal = asio::ip::make_address(options_.host, error);
  if (!error) {
    addresses_.emplace_back(literal, static_cast<uint16_t>(options_.port));
    TryNextAddressOnLoop();
    return;
  }
  ArmTimerOnLoop(options_.attempt_timeout,
                 [this] { OnResolvedOnLoop("no answer from the name service", {}); });
  resolver_.async_resolve(
      options_.host, absl::StrCat(options_.port), asio::ip::tcp::resolver::numeric_service,
      [this, mailbox = mailbox_](const asio::error_code& failed,
                                 asio::ip::tcp::resolver::results_type found) {
        std::vector<asio::ip::tcp::endpoint> addresses;
        for (const auto& entry : found) addresses.insert(addresses.begin(), entry.endpoint());
        mailbox.Post([this, why = failed ? failed.message() : std::string(), addresses] {
          if (phase_ == Phase::kResolving) OnResolvedOnLoop(why, addresses);
        });
      });
}

void GrpcLink::OnResolvedOnLoop(const std::string& why_not,
                                std::vector<asio::ip::tcp::endpoint> addresses) {
  addresses_ = std::move(addresses);
  if (!addresses_.empty()) {
    TryNextAddressOnLoop();
    return;
  }
  FailedOnLoop({FailureKind::kRetry, absl::StrCat("cannot resolve ", options_.host, ": ", why_not),
                absl::OkStatus()});
}

void GrpcLink::TryNextAddressOnLoop() {
  if (addresses_.empty()) {
    BackOffOnLoop();
    return;
  }
  const asio::ip::tcp::endpoint address = addresses_.back();
  addresses_.pop_back();
  StartAttemptOnLoop(address, options_.tls);
}

void GrpcLink::StartAttemptOnLoop(const asio::ip::tcp::endpoint& address, TlsMode tls) {
  phase_ = Phase::kGreeting;
  broken_off_.reset();
  about_ = {.endpoint = ToString(Endpoint{options_.host, options_.port}),
            .address = ToString(Endpoint{address.address().to_string(), address.port()}),
            .node_name = options_.node_name,
            .secret_origin = options_.secret.origin,
            .tls = tls};
  transcript_ = {.protocol_version = kProtocolVersion,
                 .run_id = options_.run_id,
                 .incarnation = options_.incarnation,
                 .role = RoleOnTheWire(options_.role),
                 .agent_nonce = RandomBytes(kNonceBytes)};
  stream_ = std::make_unique<AttendStream>(
      loop_, address, options_.secret.secret, tls,
      AttendEvents{
          .on_message = [this](const proto::FromServer& m) { OnMessageOnLoop(m); },
          .on_written = [this] { PumpOnLoop(); },
          .on_end = [this, address](int code,
                                    const std::string& m) { OnEndOnLoop(address, code, m); }});
  proto::FromAgent message;
  proto::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_run_id(options_.run_id);
  hello->set_incarnation(options_.incarnation.value());
  hello->set_nonce(transcript_.agent_nonce);
  hello->set_role(RoleOnTheWire(options_.role));
  hello->set_key_name(ChannelName(DeriveChannelKey(options_.secret.secret)));
  hello->set_node_name(options_.node_name);
  hello->set_answers_inquiries(options_.role == LinkRole::kAgent);
  stream_->Write(message);
  ArmTimerOnLoop(options_.attempt_timeout, [this] {
    BreakOffOnLoop(absl::UnavailableError(
        absl::StrCat("no answer from ", about_.endpoint, " (", about_.address, ") within ",
                     absl::FormatDuration(options_.attempt_timeout),
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
      if (phase_ == Phase::kGreeting) return OnChallengeOnLoop(message);
      break;
    case proto::FromServer::kAccepted:
      if (phase_ == Phase::kProving) return OnAcceptedOnLoop(message);
      break;
    case proto::FromServer::kDirective:
      if (phase_ == Phase::kUp) return OnDirectiveOnLoop(message);
      if (phase_ == Phase::kClosing) return absl::OkStatus();
      break;
    case proto::FromServer::kRepeat:
      if (phase_ == Phase::kUp && last_directive_) return OnRepeatOnLoop(message);
      if (phase_ == Phase::kClosing) return absl::OkStatus();
      break;
    case proto::FromServer::kStore:
      if (phase_ == Phase::kUp) return OnStoreReplyOnLoop(message);
      if (phase_ == Phase::kClosing) return absl::OkStatus();
      break;
    case proto::FromServer::kAnswer:
      if (phase_ == Phase::kUp && stop_asked_.request) return OnAnswerOnLoop(message);
      if (phase_ == Phase::kClosing) return absl::OkStatus();
      break;
    case proto::FromServer::kInquiryAnswer:
      return OnInquiryAnswerOnLoop(message);
    case proto::FromServer::kInquiry:
      OnInquiryOnLoop(message);
      return absl::OkStatus();
    case proto::FromServer::MESSAGE_NOT_SET:
      if (message.has_watch()) {
        OnWatchOrderOnLoop(message);
        return absl::OkStatus();
      }
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the server at ", about_.endpoint,
                   " sent an unexpected message: install the same Muster on both"));
}

absl::Status GrpcLink::OnChallengeOnLoop(const proto::FromServer& message) {
  transcript_.server_nonce = message.challenge().nonce();
  if (transcript_.server_nonce.size() != kNonceBytes ||
      !IsSameProof(ProveAsServer(job_key_, transcript_), message.challenge().proof())) {
    return DifferentSecret(about_);
  }
  proto::FromAgent reply;
  reply.mutable_proof()->set_proof(ProveAsAgent(job_key_, transcript_));
  phase_ = Phase::kProving;
  pending_proof_ = std::make_unique<proto::FromAgent>(std::move(reply));
  return absl::OkStatus();
}

absl::Status GrpcLink::OnAcceptedOnLoop(const proto::FromServer& message) {
  const ServerTerm term(message.accepted().term());
  if (term < newest_term_) {
    return absl::UnavailableError(absl::StrCat("the server at ", about_.endpoint, " is of term ",
                                               ToString(term), ", older than term ",
                                               ToString(newest_term_), " heard before"));
  }
  newest_term_ = term;
  phase_ = Phase::kUp;
  about_.was_accepted = true;
  was_up_ = true;
  refusals_ = 0;
  ++timer_id_;
  has_unsent_report_ = newest_report_.has_value();
  stop_asked_.is_unsent = stop_asked_.request.has_value();
  inquiries_.are_known = message.accepted().answers_inquiries();
  sent_report_.reset();
  last_directive_.reset();
  renew_interval_ = absl::ZeroDuration();
  TellStateOnLoop(true, absl::StrCat("attending ", about_.endpoint), absl::OkStatus());
  return absl::OkStatus();
}

absl::Status GrpcLink::OnDirectiveOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(Directive directive, Decode(message.directive()));
  if (directive.term < newest_term_) return absl::OkStatus();
  newest_term_ = directive.term;
  backoff_step_ = 0;
  last_directive_ = directive;
  renew_interval_ = absl::Microseconds(message.renew_interval_us());
  if (listener_.on_directive) listener_.on_directive(std::move(directive));
  return absl::OkStatus();
}

absl::Status GrpcLink::OnRepeatOnLoop(const proto::FromServer& message) {
  last_directive_->revision = message.repeat().revision();
  last_directive_->report_sequence = message.repeat().report_sequence();
  renew_interval_ = absl::Microseconds(message.renew_interval_us());
  if (listener_.on_directive) listener_.on_directive(*last_directive_);
  return absl::OkStatus();
}

absl::Status GrpcLink::OnStoreReplyOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(StoreReply reply, Decode(message.store()));
  if (unanswered_.erase(reply.request_id) == 0) return absl::OkStatus();
  if (listener_.on_store_reply) listener_.on_store_reply(std::move(reply));
  return absl::OkStatus();
}

// What a newer version says, and is not known here, is no reason to leave it.
void GrpcLink::OnWatchOrderOnLoop(const proto::FromServer& message) {
  absl::StatusOr<verdict::WatchOrder> order = Decode(message.watch());
  if (phase_ == Phase::kUp && order.ok() && listener_.on_watch_order) {
    listener_.on_watch_order(*std::move(order));
  }
}

absl::Status GrpcLink::OnAnswerOnLoop(const proto::FromServer& message) {
  MUSTER_ASSIGN_OR_RETURN(StopAnswer answer, Decode(message.answer()));
  stop_asked_.request.reset();
  if (stop_asked_.on_answer) stop_asked_.on_answer(std::move(answer));
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
  if (pending_proof_ != nullptr) {
    stream_->Write(*std::exchange(pending_proof_, nullptr));
    return;
  }
  if (phase_ != Phase::kUp && phase_ != Phase::kClosing) return;
  if (std::exchange(has_unsent_report_, false) && WriteReportOnLoop()) return;
  if (std::exchange(stop_asked_.is_unsent, false) && stop_asked_.request) {
    proto::FromAgent message;
    if (const auto* stop = std::get_if<StopRequest>(&*stop_asked_.request)) {
      Encode(*stop, message.mutable_ask());
    } else {
      const Key& key = std::get<AgentEnding>(*stop_asked_.request).life_key;
      message.mutable_agent_ended()->set_life_key(key.data(), key.size());
    }
    stream_->Write(message);
    return;
  }
  if (!unsent_answers_.empty()) {
    stream_->Write(*unsent_answers_.front());
    unsent_answers_.pop_front();
  } else if (!unsent_requests_.empty()) {
    unsent_bytes_ -= unsent_requests_.front()->ByteSizeLong();
    stream_->Write(*unsent_requests_.front());
    unsent_requests_.pop_front();
  } else if (!inquiries_.unsent.empty()) {
    stream_->Write(*inquiries_.unsent.front());
    inquiries_.unsent.pop_front();
  } else if (phase_ == Phase::kClosing && !std::exchange(is_half_closed_, true)) {
    stream_->HalfClose();
  }
}

// False if it says nothing new and it is not time to renew the lease yet: an agent reports every
// two seconds, a large job's server wants to hear less.
bool GrpcLink::WriteReportOnLoop() {
  const MonoTime now = MonoNow();
  const bool is_renewal = sent_report_ && IsRenewalOf(*newest_report_, *sent_report_);
  const bool is_urgent = !urgent_words_.empty();
  if (is_renewal && !is_urgent && now + kRenewEarly < sent_at_ + renew_interval_) return false;
  proto::FromAgent message;
  if (is_renewal) {
    message.mutable_renewal()->set_sequence(newest_report_->sequence);
  } else {
    Encode(FencedReport{options_.incarnation, newest_term_, *newest_report_},
           message.mutable_report());
    sent_report_ = *newest_report_;
  }
  if (is_urgent) {
    Encode(urgent_words_.front(), message.mutable_watch());
    urgent_words_.pop_front();
    has_unsent_report_ = !urgent_words_.empty();
  } else if (newest_summary_) {
    Encode(*newest_summary_, message.mutable_watch());
    newest_summary_.reset();
  }
  sent_at_ = now;
  stream_->Write(message);
  return true;
}

// Ends the attempt or the stream by our own decision. The end comes through OnEndOnLoop like any
// other, where the first reason given counts: what follows from breaking off must not hide it.
void GrpcLink::BreakOffOnLoop(absl::Status reason) {
  if (!broken_off_.has_value()) broken_off_ = std::move(reason);
  if (stream_ != nullptr) stream_->Cancel();
}

void GrpcLink::OnEndOnLoop(const asio::ip::tcp::endpoint& address, int code,
                           const std::string& message) {
  stream_.reset();
  pending_proof_.reset();
  urgent_words_.clear();
  unsent_answers_.clear();
  inquiries_.unsent.clear();
  if (phase_ == Phase::kClosing) {
    FinishCloseOnLoop();
    return;
  }
  const ConnectFailure failure =
      broken_off_.has_value() ? AsFailure(*broken_off_) : ExplainFailure(about_, code, message);
  if (failure.kind == FailureKind::kCertificate) return StartAttemptOnLoop(address, TlsMode::kLook);
  FailedOnLoop(failure);
}

void GrpcLink::FailedOnLoop(const ConnectFailure& failure) {
  ++timer_id_;  // the attempt's time-out is over with the attempt
  phase_ = Phase::kBackingOff;
  // One of several addresses may answer and another refuse the connection, so only success resets
  // the count. Once the right server has been there, a stranger on its port (another user's
  // musterd, a web server) says nothing about it: it may come back, and how long that is waited for
  // is the agent's orphan time-out.
  if (failure.kind != FailureKind::kRetry) ++refusals_;
  const bool gives_up = failure.kind != FailureKind::kRetry && !was_up_ &&
                        refusals_ >= TriesBeforeGivingUp(failure.kind);
  if (gives_up) phase_ = Phase::kGivenUp;
  last_detail_ = failure.detail;
  FailStoreRequestsOnLoop();
  if (!gives_up) TryNextAddressOnLoop();
  TellStateOnLoop(false, failure.detail, gives_up ? failure.fatal : absl::OkStatus());
}

void GrpcLink::BackOffOnLoop() {
  phase_ = Phase::kBackingOff;
  ArmTimerOnLoop(ComputeBackoff(options_.backoff, backoff_step_++, NextJitter()),
                 [this] { ResolveOnLoop(); });
}

void GrpcLink::FailStoreRequestsOnLoop() {
  unsent_requests_.clear();
  unsent_bytes_ = 0;
  for (const uint64_t id : std::exchange(unanswered_, {})) {
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

double GrpcLink::NextJitter() {
  // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  uint64_t z = (jitter_state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

}  // namespace muster::rendezvous
