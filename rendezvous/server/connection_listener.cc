#include "rendezvous/server/connection_listener.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/posix/stream_descriptor.hpp"
#include "proto/base/endpoint.h"

namespace muster::rendezvous {
namespace {

// A crowd may wait in the kernel until the loop comes to it (the kernel cuts it at its somaxconn).
constexpr int kBacklog = 65535;
// So that a crowd of connections does not keep the loop from its agents.
constexpr int kAcceptedPerTurn = 64;
constexpr std::chrono::milliseconds kTryAgain(100);
// Data that a peer does not acknowledge for this long breaks its connection.
constexpr int kUnacknowledgedMillis = 20000;
// A connection that says nothing for this long is handed to gRPC, which waits for it.
constexpr std::chrono::seconds kFirstByteTime(1);

// The store of PyTorch, which torchrun's agents meet at, begins each request with a small number,
// its kind; TLS begins with 22 and HTTP/2 with a letter. Source: torch 2.15,
// torch/csrc/distributed/c10d/TCPStoreBackend.hpp, QueryType; 1.13 likewise.
bool IsTorchsStore(unsigned char first_byte) { return first_byte < 22; }

absl::Status BindError(const asio::ip::tcp::endpoint& address, const asio::error_code& error) {
  const std::string what = absl::StrCat("cannot listen on ", ToText(address), ": ");
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

struct ConnectionListener::Greeting {
  explicit Greeting(const asio::any_io_executor& loop) : descriptor(loop), deadline(loop) {}
  asio::posix::stream_descriptor descriptor;
  asio::steady_timer deadline;
  std::string peer;
};

ConnectionListener::ConnectionListener(asio::io_context& loop, int max_descriptor)
    : mailbox_(loop), acceptor_(loop), again_(loop), max_descriptor_(max_descriptor) {}

ConnectionListener::~ConnectionListener() { mailbox_.Close(); }

std::string ToText(const asio::ip::tcp::endpoint& address) {
  asio::ip::address ip = address.address();
  if (ip.is_v6() && ip.to_v6().is_v4_mapped()) {
    ip = asio::ip::make_address_v4(asio::ip::v4_mapped, ip.to_v6());
  }
  return ToString(Endpoint{.host = ip.to_string(), .port = address.port()});
}

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Listen(
    asio::io_context& loop, const asio::ip::tcp::endpoint& address, int max_descriptor) {
  std::unique_ptr<ConnectionListener> self(new ConnectionListener(loop, max_descriptor));
  asio::ip::tcp::acceptor& acceptor = self->acceptor_;
  asio::error_code error;
  acceptor.open(address.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(address, error);
  if (!error) error = self->BeginListening();
  if (error) return BindError(address, error);
  return self;
}

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Adopt(
    asio::io_context& loop, UniqueFd socket, int max_descriptor) {
  std::unique_ptr<ConnectionListener> self(new ConnectionListener(loop, max_descriptor));
  asio::ip::tcp::endpoint address;
  socklen_t length = static_cast<socklen_t>(address.capacity());
  asio::error_code error;
  if (::getsockname(socket.get(), address.data(), &length) != 0) {
    error = asio::error_code(errno, asio::system_category());
  } else {
    self->acceptor_.assign(address.protocol(), socket.release(), error);
  }
  if (!error) error = self->BeginListening();
  if (error) return BindError(address, error);
  return self;
}

// A socket that listens already gets our length of its queue.
asio::error_code ConnectionListener::BeginListening() {
  asio::error_code error;
  acceptor_.listen(kBacklog, error);
  if (!error) acceptor_.native_non_blocking(true, error);
  if (!error) address_ = acceptor_.local_endpoint(error);
  return error;
}

void ConnectionListener::Start(ListenerEvents events) {
  events_ = std::move(events);
  Await();
}

void ConnectionListener::Await() {
  acceptor_.async_wait(asio::socket_base::wait_read,
                       [this, mailbox = mailbox_](const asio::error_code& error) {
                         if (error) return;
                         mailbox.Post([this] { AcceptSome(); });
                       });
}

void ConnectionListener::AcceptSome() {
  for (int i = 0; i < kAcceptedPerTurn; ++i) {
    asio::ip::tcp::endpoint peer;
    socklen_t length = static_cast<socklen_t>(peer.capacity());
    UniqueFd fd(
        ::accept4(acceptor_.native_handle(), peer.data(), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && (errno == ECONNABORTED || errno == EINTR)) continue;
    if (!fd && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (!fd) {
      // No descriptor or memory: what waits in the kernel stays there, and trying at once would
      // only spin.
      again_.expires_after(kTryAgain);
      again_.async_wait([this, mailbox = mailbox_](const asio::error_code& error) {
        if (!error) mailbox.Post([this] { AcceptSome(); });
      });
      return;
    }
    peer.resize(length);
    if (fd.get() >= max_descriptor_) {
      if (events_.on_turned_away) events_.on_turned_away(ToText(peer));
      continue;
    }
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMillis,
                 sizeof kUnacknowledgedMillis);
    AwaitFirstByte(std::move(fd), ToText(peer));
  }
  Await();
}

void ConnectionListener::AwaitFirstByte(UniqueFd connection, std::string peer) {
  const uint64_t id = next_id_++;
  auto& greeting = *(greetings_[id] = std::make_unique<Greeting>(acceptor_.get_executor()));
  greeting.descriptor.assign(connection.release());
  greeting.peer = std::move(peer);
  greeting.deadline.expires_after(kFirstByteTime);
  const auto go_on = [this, mailbox = mailbox_, id](const asio::error_code& error) {
    if (!error) mailbox.Post([this, id] { OnFirstByte(id); });
  };
  greeting.descriptor.async_wait(asio::posix::stream_descriptor::wait_read, go_on);
  greeting.deadline.async_wait(go_on);
}

void ConnectionListener::OnFirstByte(uint64_t id) {
  const auto found = greetings_.find(id);
  if (found == greetings_.end()) return;  // the byte and the deadline came together
  const std::string peer = std::move(found->second->peer);
  UniqueFd connection(found->second->descriptor.release());
  greetings_.erase(found);
  unsigned char first = 0;
  const ssize_t length = ::recv(connection.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  const bool is_gone = length == 0 || (length < 0 && errno == ECONNRESET);
  if (length == 1 && IsTorchsStore(first)) {
    events_.on_torchrun(peer);
  } else if (is_gone) {
    events_.on_probe(peer);
  } else {
    events_.on_connection(std::move(connection), peer);
  }
}

}  // namespace muster::rendezvous
