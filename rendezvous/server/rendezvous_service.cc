#include "rendezvous/server/rendezvous_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/base/endpoint.h"
#include "proto/base/mutex.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kMinPingIntervalMillis = 5000;
// The agents ping; this only finds those that have gone without a word.
constexpr int kKeepaliveMillis = 60000;
constexpr int kKeepaliveTimeoutMillis = 20000;

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string ToText(const asio::ip::tcp::endpoint& address) {
  return ToString(Endpoint{.host = address.address().to_string(), .port = address.port()});
}

// gRPC does not say why it could not bind, so we try first.
absl::Status CheckCanListen(const asio::ip::tcp::endpoint& address) {
  asio::io_context unused;
  asio::ip::tcp::acceptor probe(unused);
  asio::error_code error;
  if (!probe.open(address.protocol(), error) &&
      !probe.set_option(asio::socket_base::reuse_address(true), error)) {
    probe.bind(address, error);
  }
  const std::string what = absl::StrCat("cannot listen on ", ToText(address), ": ");
  if (!error) return absl::OkStatus();
  if (error == asio::error::address_in_use) {
    return absl::AlreadyExistsError(absl::StrCat(what, "another process has this port"));
  }
  if (error.value() == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(absl::StrCat(what, "this machine has no such address"));
  }
  if (error == asio::error::access_denied) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, "permission denied; choose a port from 1024 on"));
  }
  return absl::UnavailableError(absl::StrCat(what, error.message()));
}

}  // namespace

class RendezvousService::Stream final
    : public grpc::ServerBidiReactor<proto::FromAgent, proto::FromServer> {
 public:
  Stream(StreamId id, LoopMailbox mailbox, RendezvousService* owner,
         grpc::CallbackServerContext* context)
      : id_(id), mailbox_(std::move(mailbox)), owner_(owner), address_(context->peer()) {
    peer_.tls = owner->tls_ == TlsMode::kOn;
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
  void Write(const proto::FromServer& message) {
    base::MutexLock lock(mu_);
    if (is_finished_) return;
    out_ = message;
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

RendezvousService::RendezvousService(asio::io_context& loop, TlsMode tls, ServiceEvents events)
    : mailbox_(loop), tls_(tls), events_(std::move(events)) {}

absl::StatusOr<std::unique_ptr<RendezvousService>> RendezvousService::Start(
    asio::io_context& loop, const asio::ip::tcp::endpoint& address,
    const std::vector<OwnerKey>& owners, TlsMode tls, ServiceEvents events) {
  if (absl::Status status = CheckCanListen(address); !status.ok()) return status;
  QuietGrpc();
  std::unique_ptr<RendezvousService> service(new RendezvousService(loop, tls, std::move(events)));
  service->acceptor_ = std::make_unique<Acceptor>(service.get());
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMillis);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(ToText(address), MakeServerCredentials(owners, tls), &service->port_);
  builder.RegisterService(service->acceptor_.get());
  service->server_ = builder.BuildAndStart();
  if (service->server_ == nullptr || service->port_ == 0) {
    // The port was taken between our try and gRPC's.
    absl::Status again = CheckCanListen(address);
    return again.ok() ? absl::UnavailableError(absl::StrCat("cannot listen on ", ToText(address)))
                      : again;
  }
  return service;
}

RendezvousService::~RendezvousService() {
  mailbox_.Close();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void RendezvousService::ReadNext(StreamId id) {
  if (const auto it = streams_.find(id); it != streams_.end()) it->second->ReadNext();
}

void RendezvousService::Write(StreamId id, const proto::FromServer& message) {
  if (const auto it = streams_.find(id); it != streams_.end()) it->second->Write(message);
}

void RendezvousService::Finish(StreamId id, const absl::Status& status) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  const std::shared_ptr<Stream> stream = it->second;
  streams_.erase(it);
  stream->End(ToGrpc(status));
}

void RendezvousService::OnOpenOnLoop(StreamId id, std::shared_ptr<Stream> stream) {
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
