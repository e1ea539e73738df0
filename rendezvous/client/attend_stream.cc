#include "rendezvous/client/attend_stream.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kKeepaliveMillis = 10000;
constexpr int kKeepaliveTimeoutMillis = 20000;
// What the server may send before it is read.
constexpr int kReadAheadBytes = 1 << 20;
constexpr std::chrono::seconds kEndTime(5);

// A target that gRPC need not resolve. IPv6 is escaped: brackets are no part of a URI's path.
std::string TargetOf(const asio::ip::tcp::endpoint& address) {
  const std::string ip = address.address().to_string();
  if (address.address().is_v4()) return absl::StrCat("ipv4:", ip, ":", address.port());
  return absl::StrCat("ipv6:%5B", absl::StrReplaceAll(ip, {{"%", "%25"}}), "%5D:", address.port());
}

std::shared_ptr<grpc::Channel> MakeChannel(const asio::ip::tcp::endpoint& address,
                                           absl::string_view secret, TlsMode tls) {
  PrepareGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The server sets these likewise: see rendezvous_service.cc.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  arguments.SetMaxReceiveMessageSize(kMaxReplyMessageBytes);
  const auto credentials = MakeClientCredentials(secret, tls, &arguments);
  return grpc::CreateCustomChannel(TargetOf(address), credentials, arguments);
}

}  // namespace

struct AttendStream::Connection {
  explicit Connection(std::shared_ptr<grpc::Channel> opened)
      : channel(std::move(opened)), stub(proto::Rendezvous::NewStub(channel)) {}
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<proto::Rendezvous::Stub> stub;
};

class AttendStream::Reactor final
    : public grpc::ClientBidiReactor<proto::FromAgent, proto::FromServer> {
 public:
  Reactor(Connection& connection, LoopMailbox mailbox, AttendStream* owner)
      : mailbox_(std::move(mailbox)), owner_(owner) {
    connection.stub->async()->Attend(&context_, this);
    AddHold();
    StartRead(&in_);
    StartCall();
  }

  void Write(const proto::FromAgent& message) {
    out_ = message;
    StartWrite(&out_);
  }
  void ReadNext() { StartRead(&in_); }
  void HalfClose() { StartWritesDone(); }
  void Cancel() { context_.TryCancel(); }
  void Release() { RemoveHold(); }

  // The owner is dereferenced on the loop only, where the mailbox drops tasks once it has gone.
  void OnReadDone(bool ok) override {
    if (!ok) {
      mailbox_.Post([owner = owner_] { owner->OnReadEndOnLoop(); });
      return;
    }
    mailbox_.Post([owner = owner_, message = std::move(in_)] { owner->OnMessageOnLoop(message); });
  }
  void OnWriteDone(bool ok) override {
    if (ok) mailbox_.Post([owner = owner_] { owner->OnWrittenOnLoop(); });
  }
  void OnDone(const grpc::Status& status) override {
    const LoopMailbox mailbox = mailbox_;
    std::promise<void> done = std::move(done_);
    AttendStream* const owner = owner_;
    const int code = static_cast<int>(status.error_code());
    const std::string message = status.error_message();
    // First, since the context refers to the channel.
    delete this;
    done.set_value();
    mailbox.Post([owner, code, message] { owner->OnEndOnLoop(code, message); });
  }
  std::future<void> Done() { return done_.get_future(); }

 private:
  grpc::ClientContext context_;
  LoopMailbox mailbox_;
  AttendStream* owner_;
  std::promise<void> done_;
  proto::FromServer in_;
  proto::FromAgent out_;
};

AttendStream::AttendStream(asio::io_context& loop, const asio::ip::tcp::endpoint& address,
                           absl::string_view secret, TlsMode tls, AttendEvents events)
    : mailbox_(loop),
      connection_(std::make_unique<Connection>(MakeChannel(address, secret, tls))),
      events_(std::move(events)) {
  reactor_ = new Reactor(*connection_, mailbox_, this);
  done_ = reactor_->Done();
}

AttendStream::~AttendStream() {
  mailbox_.Close();
  if (reactor_ != nullptr) {
    reactor_->Cancel();
    reactor_->Release();
  }
  // A connection that gRPC still uses is left to the end of the process.
  if (done_.wait_for(kEndTime) != std::future_status::ready) (void)connection_.release();
}

void AttendStream::Write(const proto::FromAgent& message) {
  if (reactor_ == nullptr) return;
  is_writing_ = true;
  reactor_->Write(message);
}

void AttendStream::ReadNext() {
  if (reactor_ != nullptr) reactor_->ReadNext();
}

void AttendStream::HalfClose() {
  if (reactor_ != nullptr) reactor_->HalfClose();
}

void AttendStream::Cancel() {
  if (reactor_ != nullptr) reactor_->Cancel();
}

void AttendStream::OnMessageOnLoop(const proto::FromServer& message) {
  events_.on_message(message);
}

void AttendStream::OnWrittenOnLoop() {
  is_writing_ = false;
  events_.on_written();
}

void AttendStream::OnReadEndOnLoop() { std::exchange(reactor_, nullptr)->Release(); }

void AttendStream::OnEndOnLoop(int code, const std::string& message) {
  // Moved out, since the callee may destroy this stream.
  const auto on_end = std::move(events_.on_end);
  on_end(code, message);
}

}  // namespace muster::rendezvous
