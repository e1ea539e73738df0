#include "agent/worker_service.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "asio/buffer.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "proto/agent.pb.h"
#include "proto/io/descriptors.h"
#include "proto/io/log.h"
#include "proto/io/stop_wire.h"
#include "proto/io/store_wire.h"

namespace muster::agent {
namespace {

// What fits into one message to the rendezvous (kMaxMessageBytes of rendezvous/link/wire.h).
constexpr size_t kMaxFrameBytes = size_t{3} << 20;
constexpr size_t kMaxConnections = 4096;
constexpr size_t kMaxPendingPerConnection = 1024;
constexpr int kProtocolVersion = 1;
constexpr std::chrono::milliseconds kAcceptAgain(100);
using asio::local::stream_protocol;

// The process at the other end; 0: it is not one of our process namespace.
pid_t PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

std::string Framed(const google::protobuf::MessageLite& message) {
  const std::string body = message.SerializeAsString();
  std::string frame(4, '\0');
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
  return frame + body;
}

}  // namespace

// One worker's connection. What is under way on its socket shares it, since asio goes on with a
// read or write that was half done even after the connection has been given up; so giving it up is
// said to it (Close), and completions that come later do nothing. The service may be gone by then.
class WorkerService::Connection {
 private:
  // Wraps `next` so that it runs only while this connection is still there.
  template <typename Next>
  auto Resume(Next next) {
    return
        [keep = service_->connections_.at(id_), next](const asio::error_code& error, size_t bytes) {
          if (keep->is_closed_) return;
          if (error) {
            WorkerService* const service = keep->service_;
            service->Forget(keep->id_);
            keep->TakeBackPromise();
            if (keep->worker_ && !keep->said_goodbye_ && !keep->has_ended()) {
              service->listener_.on_silent_leave(*keep->worker_);
            }
            return;
          }
          next(*keep, bytes);
        };
  }

 public:
  Connection(WorkerService* service, uint64_t id, stream_protocol::socket socket)
      : service_(service), id_(id), socket_(std::move(socket)) {}

  // The service forgets this connection.
  void Close() {
    is_closed_ = true;
    asio::error_code ignored;
    socket_.close(ignored);
  }

  void ReadFrame() {
    if (is_closed_) return;
    asio::async_read(socket_, asio::buffer(length_), Resume([](Connection& c, size_t) {
                       size_t size = 0;
                       for (int i = 3; i >= 0; --i) size = size << 8 | c.length_[i];
                       if (size > kMaxFrameBytes) return c.Drop("a frame is too long");
                       c.body_.resize(size);
                       c.ReadBody();
                     }));
  }

  void Send(const proto::WorkerReply& reply) {
    outbox_.push_back(Framed(reply));
    unread_bytes_ += outbox_.back().size();
    if (unread_bytes_ > kUnreadBytesMax) {
      Drop(absl::StrCat("it has left ", unread_bytes_, " bytes of answers unread"));
      return;
    }
    if (outbox_.size() == 1) WriteNext();
  }

  bool obeys_stop() const { return promise_.obeys; }
  bool survives() const { return promise_.survives; }
  // It has let go of its round, which is over, and waits for its place in the next.
  bool is_parked() const { return promise_.awaits_round && is_told_; }
  bool is_of(LocalRank worker) const { return worker_ == worker; }

  void SendRoundOver(const proto::WorkerReply& reply) {
    is_told_ = true;
    Send(reply);
  }
  // Ends once `reply` has left. What the worker has promised it will promise again.
  void SendLast(const proto::WorkerReply& reply) {
    promise_ = {};
    last_word_ = LastWord::kNextRound;
    Send(reply);
  }

  size_t num_pending = 0;

 private:
  // What it was told last of all. One that was refused is closed once it has been sent that.
  enum class LastWord { kNone, kNextRound, kRefused };
  bool has_ended() const { return last_word_ != LastWord::kNone; }

  void ReadBody() {
    if (is_closed_) return;
    asio::async_read(socket_, asio::buffer(body_), Resume([](Connection& c, size_t) {
                       proto::WorkerMessage message;
                       if (!message.ParseFromString(c.body_))
                         return c.Drop("it sent a malformed message");
                       if (c.Handle(message)) c.ReadUnlessUnread();
                     }));
  }

  // The next request is read only once the worker has taken the answers to the earlier ones, so
  // that it cannot fill this process; WriteNext resumes.
  void ReadUnlessUnread() {
    is_paused_ = unread_bytes_ > kUnreadBytesPause;
    if (!is_paused_) ReadFrame();
  }

  // False if the connection is to be read no more.
  bool Handle(const proto::WorkerMessage& message) {
    if (has_ended()) return true;
    if (message.has_hello()) {
      return worker_ ? Refuse("it has said hello before") : Greet(message.hello());
    }
    if (!worker_) return Refuse("its first message was not a greeting");
    const int64_t step =
        std::max(message.goodbye().step(), message.stop_floor().step());  // 0: of no such message
    if (step > kMaxStep) {
      return Refuse(
          absl::StrCat("it says that it is at step ", step, "; steps are ", kMaxStep, " at most"));
    }
    said_goodbye_ = said_goodbye_ || message.has_goodbye();
    HearPromise(message);
    if (message.has_store()) Ask(message.store());
    return service_->connections_.contains(id_);
  }

  void HearPromise(const proto::WorkerMessage& message) {
    WorkerPromise promise = promise_;
    if (message.has_goodbye()) promise.floor = message.goodbye().step();  // it begins nothing more
    if (message.has_obeys_stop()) promise.obeys = true;
    if (message.has_stop_floor()) promise.floor = message.stop_floor().step();
    if (message.has_survives_rounds()) promise.survives = true;
    if (message.has_awaits_round()) promise.survives = promise.awaits_round = true;
    Promise(promise);
    if (survives() && !is_told_ && service_->round_over_ != nullptr && !is_closed_) {
      SendRoundOver(*service_->round_over_);
    }
  }

  bool Greet(const proto::WorkerMessage::Hello& hello) {
    const bool is_of_round = Round(hello.round()) == service_->round_ &&
                             Instance(hello.instance()) == service_->instance_;
    if (hello.protocol_version() != kProtocolVersion || !is_of_round) {
      return Refuse(absl::StrCat(
          "it speaks protocol version ", hello.protocol_version(), " and is of round ",
          hello.round(), " of instance ", hello.instance(), "; expected version ", kProtocolVersion,
          ", round ", service_->round_.value(), " and instance ", service_->instance_.value()));
    }
    const LocalRank said(hello.local_rank());
    const absl::Status may = service_->listener_.may_speak(said, PeerOf(socket_.native_handle()));
    if (!may.ok()) return Refuse(std::string(may.message()));
    worker_ = said;
    proto::WorkerReply reply;
    reply.mutable_welcome()->set_round(service_->round_.value());
    Send(reply);
    service_->listener_.on_hello(*worker_);
    return true;
  }

  void Promise(WorkerPromise promise) {
    if (promise.floor) promise.floor = std::max<int64_t>(*promise.floor, -1);
    if (promise == promise_) return;
    promise_ = promise;
    service_->listener_.on_promise(*worker_, promise_);
  }

  void TakeBackPromise() {
    if (!said_goodbye_ && !has_ended()) Promise({});
  }

  void Ask(const proto::StoreRequest& encoded) {
    absl::StatusOr<StoreRequest> request = Decode(encoded);
    absl::Status status = request.status();
    if (!status.ok()) LogRefusal(status.message());
    if (status.ok() && num_pending >= kMaxPendingPerConnection) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "this worker has ", kMaxPendingPerConnection, " unanswered requests already"));
    }
    if (status.ok() && is_told_) status = absl::AbortedError("the round is over");
    if (!status.ok()) {
      proto::WorkerReply reply;
      Encode(StoreReply{.request_id = encoded.request_id(), .status = status},
             reply.mutable_store());
      Send(reply);
      return;
    }
    ++num_pending;
    service_->Forward(id_, *std::move(request));
  }

  void WriteNext() {
    if (is_closed_) return;
    asio::async_write(socket_, asio::buffer(outbox_.front()), Resume([](Connection& c, size_t) {
                        c.unread_bytes_ -= c.outbox_.front().size();
                        c.outbox_.pop_front();
                        if (!c.outbox_.empty()) return c.WriteNext();
                        if (c.last_word_ == LastWord::kRefused) return c.service_->Forget(c.id_);
                        if (c.is_paused_) c.ReadUnlessUnread();
                      }));
  }

  // What it has said before counts no more. Always false, for Handle.
  bool Refuse(const std::string& reason) {
    LogRefusal(reason);
    TakeBackPromise();
    last_word_ = LastWord::kRefused;
    proto::WorkerReply reply;
    reply.mutable_refused()->set_reason(reason);
    Send(reply);
    return false;
  }

  void LogRefusal(absl::string_view reason) {
    log::Write(log::Level::kWarning, "worker_refused",
               absl::StrCat("refused what a process said as a worker: ", reason));
  }

  void Drop(const std::string& reason) {
    log::Write(log::Level::kWarning, "worker_connection_dropped",
               absl::StrCat("closed a worker's connection: ", reason));
    service_->Forget(id_);
    TakeBackPromise();
  }

  WorkerService* const service_;  // owns this connection
  const uint64_t id_;
  stream_protocol::socket socket_;
  bool is_closed_ = false;
  bool said_goodbye_ = false;
  bool is_told_ = false;  // that its round is over
  LastWord last_word_ = LastWord::kNone;
  bool is_paused_ = false;           // nothing is being read: too much is unread at the other end
  std::optional<LocalRank> worker_;  // who has greeted
  WorkerPromise promise_;
  size_t unread_bytes_ = 0;  // in outbox_
  std::array<uint8_t, 4> length_{};
  std::string body_;
  std::deque<std::string> outbox_;
};

WorkerService::WorkerService(asio::io_context& loop, WorkerListener listener)
    : listener_(std::move(listener)), acceptor_(loop), accept_again_(loop) {}

WorkerService::~WorkerService() { Close(); }

absl::Status WorkerService::Listen(const std::string& socket_path) {
  asio::error_code error;
  acceptor_.open(stream_protocol(), error);
  if (!error) acceptor_.bind(stream_protocol::endpoint(socket_path), error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::InternalError(absl::StrCat(
        "cannot make the workers' socket ", socket_path, ": ", error.message(),
        error == asio::error::no_descriptors ? "; raise the limit on open files (ulimit -n)" : ""));
  }
  Accept();
  return absl::OkStatus();
}

void WorkerService::Accept() {
  acceptor_.async_accept([this](const asio::error_code& error, stream_protocol::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      // Out of descriptors, as a rule: the connection stays in the kernel's queue, so trying again
      // at once would only spin.
      accept_again_.expires_after(kAcceptAgain);
      accept_again_.async_wait([this](const asio::error_code& aborted) {
        if (!aborted) Accept();
      });
      return;
    }
    if (IsOfThisUser(socket.native_handle()) && connections_.size() < kMaxConnections) {
      const uint64_t id = next_id_++;
      const auto connection = std::make_shared<Connection>(this, id, std::move(socket));
      connections_[id] = connection;
      connection->ReadFrame();
    }
    Accept();
  });
}

void WorkerService::StartRound(Round round, Instance instance) {
  round_ = round;
  instance_ = instance;
  round_over_.reset();
  auto parked = std::exchange(connections_, {});
  for (auto it = parked.begin(); it != parked.end();) {
    if (it->second->is_parked()) {
      ++it;
    } else {
      it->second->Close();
      it = parked.erase(it);
    }
  }
  ForgetAll();
  connections_ = std::move(parked);
}

// The connection outlives this by what is under way on it, the caller's frame included.
void WorkerService::Forget(uint64_t connection_id) {
  const auto found = connections_.find(connection_id);
  if (found == connections_.end()) return;
  found->second->Close();
  connections_.erase(found);
}

void WorkerService::ForgetAll() {
  for (const auto& [unused, connection] : connections_) connection->Close();
  connections_.clear();
  pending_.clear();
  waiting_.clear();
}

void WorkerService::Forward(uint64_t connection_id, StoreRequest request) {
  const uint64_t id = next_id_++;
  pending_[id] = {connection_id, request.request_id};
  request.request_id = id;
  request.round = round_;
  request.instance = instance_;
  OnLease();  // in order
  const absl::Status may = listener_.may_publish();
  if (may.ok()) {
    listener_.forward(request);
  } else if (std::holds_alternative<CommitCheckpoint>(request.operation)) {
    OnReply({.request_id = id, .status = may});
  } else {
    waiting_.push_back(std::move(request));
  }
}

void WorkerService::AskForAgent(StoreOperation operation,
                                std::function<void(const StoreReply&)> then) {
  const uint64_t id = next_id_++;
  pending_[id].own = std::move(then);
  listener_.forward({.request_id = id,
                     .round = round_,
                     .operation = std::move(operation),
                     .instance = instance_});
}

void WorkerService::OnLease() {
  if (waiting_.empty() || !listener_.may_publish().ok()) return;
  for (const StoreRequest& request : std::exchange(waiting_, {})) {
    if (pending_.contains(request.request_id)) listener_.forward(request);
  }
}

void WorkerService::OnReply(const StoreReply& reply) {
  const auto pending = pending_.find(reply.request_id);
  if (pending == pending_.end()) return;
  const PendingRequest asked = std::move(pending->second);
  pending_.erase(pending);
  if (asked.own) return asked.own(reply);
  const auto found = connections_.find(asked.connection_id);
  if (found == connections_.end()) return;
  --found->second->num_pending;
  StoreReply answer = reply;
  answer.request_id = asked.worker_request_id;
  proto::WorkerReply message;
  Encode(answer, message.mutable_store());
  const std::shared_ptr<Connection> keep = found->second;  // Send may give it up
  keep->Send(message);
}

void WorkerService::TellStop(const StopState& stop) {
  proto::WorkerReply message;
  Encode(stop, message.mutable_stop());
  const auto connections = connections_;  // Send may give one up
  for (const auto& [unused, connection] : connections) {
    if (connection->obeys_stop()) connection->Send(message);
  }
}

void WorkerService::TellRoundOver(bool is_followed, const std::string& reason) {
  round_over_ = std::make_unique<proto::WorkerReply>();
  round_over_->mutable_round_over()->set_is_followed(is_followed);
  round_over_->mutable_round_over()->set_reason(reason);
  const auto connections = connections_;  // Send may give one up
  for (const auto& [unused, connection] : connections) {
    if (connection->survives()) connection->SendRoundOver(*round_over_);
  }
}

bool WorkerService::SendNextRound(LocalRank worker, const std::vector<std::string>& environment) {
  const auto found = absl::c_find_if(connections_, [&](const auto& entry) {
    return entry.second->is_of(worker) && entry.second->is_parked();
  });
  if (found == connections_.end()) return false;
  proto::WorkerReply reply;
  for (const std::string& variable : environment) {
    reply.mutable_next_round()->add_environment(variable);
  }
  const std::shared_ptr<Connection> keep = found->second;
  keep->SendLast(reply);
  return true;
}

void WorkerService::Close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  accept_again_.cancel();
  ForgetAll();
}

}  // namespace muster::agent
