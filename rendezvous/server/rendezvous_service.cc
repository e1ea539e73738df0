#include "rendezvous/server/rendezvous_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kMinPingIntervalMillis = 5000;
// The agents ping; this only finds those that have gone without a word.
constexpr int kKeepaliveMillis = 60000;
constexpr int kKeepaliveTimeoutMillis = 20000;
// A connection without a stream is of no use here. An agent opens its stream at once.
constexpr int kIdleConnectionMillis = 10000;
// What an agent may send before it is read.
constexpr int kReadAheadBytes = 256 << 10;

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// gRPC's name of a peer, "ipv6:%5B::1%5D:4242", as ToText(endpoint) writes it.
std::string AddressOf(const std::string& peer) {
  return absl::StrReplaceAll(peer.substr(peer.find(':') + 1), {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

class RendezvousService::Stream final
    : public grpc::ServerBidiReactor<proto::FromAgent, proto::FromServer> {
 public:
  Stream(StreamId id, LoopMailbox mailbox, RendezvousService* owner,
         grpc::CallbackServerContext* context)
      : id_(id), mailbox_(std::move(mailbox)), owner_(owner), address_(AddressOf(context->peer())) {
    peer_.tls = owner->options_.tls == TlsMode::kOn;
    for (const grpc::string_ref& name :
         context->auth_context()->FindPropertyValues("x509_subject_alternative_name")) {
      peer_.names.emplace_back(name.data(), name.size());
    }
  }

  // Hands `self` to the loop and keeps it until OnDone.
  void Open(std::shared_ptr<Stream> self) {
    self_ = self;
    mailbox_.Post([owner = owner_, id = id_, self] { owner->OnOpenOnLoop(id, self); });
  }

  const std::string& address() const { return address_; }
  const TlsPeer& peer() const { return peer_; }

  void ReadNext() {
    base::MutexLock lock(mu_);
    if (!is_finished_) StartRead(&in_);
  }
  void Write(proto::FromServer message) {
    base::MutexLock lock(mu_);
    if (is_finished_) return;
    out_ = std::move(message);
    StartWrite(&out_);
  }
  void End(const grpc::Status& status) {
    base::MutexLock lock(mu_);
    if (!std::exchange(is_finished_, true)) Finish(status);
  }

  // The owner is dereferenced on the loop only, where the mailbox drops tasks once it has gone.
  void OnReadDone(bool ok) override {
    if (!ok) {
      mailbox_.Post([owner = owner_, id = id_] { owner->OnEndOnLoop(id); });
      return;
    }
    mailbox_.Post([owner = owner_, id = id_, message = std::move(in_)] {
      owner->OnMessageOnLoop(id, message);
    });
  }
  void OnWriteDone(bool ok) override {
    if (ok) mailbox_.Post([owner = owner_, id = id_] { owner->OnWrittenOnLoop(id); });
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    mailbox_.Post([owner = owner_, id = id_] { owner->OnEndOnLoop(id); });
    const std::shared_ptr<Stream> last = std::move(self_);
  }

 private:
  const StreamId id_;
  const LoopMailbox mailbox_;
  RendezvousService* const owner_;
  const std::string address_;
  TlsPeer peer_;
  std::shared_ptr<Stream> self_;  // set before gRPC knows the stream; cleared in OnDone
  proto::FromAgent in_;           // of the read in flight
  proto::FromServer out_;         // of the write in flight
  base::Mutex mu_;
  // No operation may start once Finish has been called: gRPC may be done with the stream at any
  // moment from then on.
  bool is_finished_ ABSL_GUARDED_BY(mu_) = false;
};

class RendezvousService::Acceptor final : public proto::Rendezvous::CallbackService {
 public:
  explicit Acceptor(RendezvousService* owner) : mailbox_(owner->mailbox_), owner_(owner) {}

  grpc::ServerBidiReactor<proto::FromAgent, proto::FromServer>* Attend(
      grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<Stream>(StreamId(next_id_++), mailbox_, owner_, context);
    stream->Open(stream);
    return stream.get();
  }

 private:
  const LoopMailbox mailbox_;
  RendezvousService* const owner_;
  std::atomic<uint64_t> next_id_ = 1;
};

RendezvousService::RendezvousService(asio::io_context& loop, ServiceOptions options,
                                     ServiceEvents events)
    : mailbox_(loop),
      options_(options),
      events_(std::move(events)),
      new_connections_(loop, options.handshake_timeout,
                       [this](const std::string& peer) { OnWastedOnLoop(peer); }) {}

absl::StatusOr<std::unique_ptr<RendezvousService>> RendezvousService::Start(
    asio::io_context& loop, std::unique_ptr<ConnectionListener> listener,
    const std::vector<OwnerKey>& owners, ServiceOptions options, ServiceEvents events) {
  std::unique_ptr<RendezvousService> service(
      new RendezvousService(loop, options, std::move(events)));
  RendezvousService* const s = service.get();
  s->listeners_.push_back(std::move(listener));
  PrepareGrpc();
  s->acceptor_ = std::make_unique<Acceptor>(s);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMillis);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC would probe the bandwidth with nearly every message: a probe has an answer, and the answer
  // is one more message.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMillis);
  builder.AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.handshake_timeout)));
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  using ConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  s->way_in_ = builder.experimental().AddExternalConnectionAcceptor(
      ConnectionType::FROM_FD, MakeServerCredentials(owners, options.tls));
  builder.RegisterService(s->acceptor_.get());
  s->server_ = builder.BuildAndStart();
  if (s->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", ToText(s->listeners_.back()->address()), ": gRPC does not start"));
  }
  s->listeners_.back()->Start(s->EventsOfListener());
  return service;
}

void RendezvousService::ListenAlso(std::unique_ptr<ConnectionListener> listener) {
  listener->Start(EventsOfListener());
  listeners_.push_back(std::move(listener));
}

ListenerEvents RendezvousService::EventsOfListener() {
  return {
      .on_connection = [this](UniqueFd fd,
                              const std::string& peer) { OnConnectionOnLoop(std::move(fd), peer); },
      .on_torchrun =
          [this](const std::string& peer) {
            events_.on_wasted(peer, absl::InvalidArgumentError(
                                        "a torchrun agent wants to join there: start every node "
                                        "of the job with muster, or every one with torchrun"));
          },
      .on_probe = [this](const std::string& peer) { OnProbeOnLoop(peer); },
      .on_turned_away =
          [this](const std::string& peer) {
            events_.on_wasted(peer, absl::ResourceExhaustedError(
                                        "this process has nearly as many connections as it may "
                                        "have open files (ulimit -n)"));
          }};
}

// Told once: who probes a port does so for ever.
void RendezvousService::OnProbeOnLoop(const std::string& peer) {
  if (std::exchange(was_probed_, true)) return;
  events_.on_wasted(
      peer, absl::CancelledError("it closed the connection without a word, as a probe of the port "
                                 "does; further ones are not told (musterd --health answers "
                                 "probes)"));
}

// Hands the descriptor over to gRPC.
void RendezvousService::OnConnectionOnLoop(UniqueFd connection, const std::string& peer) {
  new_connections_.Add(peer);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.release();
  way_in_->HandleNewConnection(&parameters);
}

void RendezvousService::OnWastedOnLoop(const std::string& peer) {
  events_.on_wasted(
      peer, absl::UnauthenticatedError(absl::StrCat(
                "it opened no stream within ", absl::FormatDuration(options_.handshake_timeout),
                options_.tls == TlsMode::kOn
                    ? ": it does not hold the same secret (TLS), or is not an agent"
                    : ": it is not an agent")));
}

// Order: the mailbox first, so that no task of a stream finds a half-destroyed service; then gRPC
// ends its streams, which touch only themselves by now; the listener and the way in go with the
// members, behind the server.
RendezvousService::~RendezvousService() {
  mailbox_.Close();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void RendezvousService::ReadNext(StreamId id) {
  if (const auto it = streams_.find(id); it != streams_.end()) it->second->ReadNext();
}

void RendezvousService::Write(StreamId id, proto::FromServer message) {
  if (const auto it = streams_.find(id); it != streams_.end()) {
    it->second->Write(std::move(message));
  }
}

void RendezvousService::Finish(StreamId id, const absl::Status& status) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  const std::shared_ptr<Stream> stream = it->second;
  streams_.erase(it);
  stream->End(ToGrpc(status));
}

void RendezvousService::OnOpenOnLoop(StreamId id, std::shared_ptr<Stream> stream) {
  new_connections_.Remove(stream->address());
  const Stream& opened = *streams_.emplace(id, std::move(stream)).first->second;
  events_.on_open(id, opened.address(), opened.peer());
}

void RendezvousService::OnMessageOnLoop(StreamId id, const proto::FromAgent& message) {
  if (streams_.contains(id)) events_.on_message(id, message);
}

void RendezvousService::OnWrittenOnLoop(StreamId id) {
  if (streams_.contains(id)) events_.on_written(id);
}

void RendezvousService::OnEndOnLoop(StreamId id) {
  if (!streams_.contains(id)) return;
  events_.on_end(id);
  Finish(id, absl::OkStatus());
}

}  // namespace muster::rendezvous
