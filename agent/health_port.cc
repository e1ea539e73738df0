#include "agent/health_port.h"

#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/ip/tcp.hpp"
#include "asio/ip/v6_only.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"

namespace muster::agent {
namespace {

using asio::ip::tcp;

constexpr int kMaxConnections = 32;
constexpr std::chrono::seconds kPatience{5};  // with who asks nothing
constexpr std::chrono::milliseconds kAcceptAgain(100);
constexpr char kAnswer[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\n"
    "alive\n";

}  // namespace

struct HealthPort::State : std::enable_shared_from_this<State> {
  explicit State(asio::io_context& loop) : acceptor(loop), accept_again(loop) {}

  struct Connection {
    explicit Connection(tcp::socket s) : socket(std::move(s)), deadline(socket.get_executor()) {}
    tcp::socket socket;
    asio::steady_timer deadline;
    std::array<char, 4096> question;
  };

  void Accept() {
    acceptor.async_accept(
        [self = shared_from_this()](const asio::error_code& error, tcp::socket socket) {
          if (!self->acceptor.is_open()) return;
          if (error) return self->AcceptLater();
          if (self->num_connections < kMaxConnections) self->Answer(std::move(socket));
          self->Accept();
        });
  }

  // Out of descriptors, as a rule: the connection stays in the kernel's queue, so trying again at
  // once would only spin.
  void AcceptLater() {
    accept_again.expires_after(kAcceptAgain);
    accept_again.async_wait([self = shared_from_this()](const asio::error_code& aborted) {
      if (!aborted && self->acceptor.is_open()) self->Accept();
    });
  }

  // The question is read but not understood: every one has the same answer. Closing before it is
  // read would reset the connection.
  void Answer(tcp::socket socket) {
    auto connection = std::make_shared<Connection>(std::move(socket));
    ++num_connections;
    const auto end = [self = shared_from_this(), connection] {
      asio::error_code ignored;
      connection->deadline.cancel();
      connection->socket.close(ignored);
    };
    connection->deadline.expires_after(kPatience);
    connection->deadline.async_wait(
        [self = shared_from_this(), connection](const asio::error_code& error) {
          asio::error_code ignored;
          if (!error) connection->socket.close(ignored);
          --self->num_connections;
        });
    connection->socket.async_read_some(
        asio::buffer(connection->question),
        [connection, end](const asio::error_code& error, size_t) {
          if (error) return end();
          asio::async_write(connection->socket, asio::buffer(kAnswer, sizeof(kAnswer) - 1),
                            [end](const asio::error_code&, size_t) { end(); });
        });
  }

  tcp::acceptor acceptor;
  asio::steady_timer accept_again;
  int num_connections = 0;
};

HealthPort::HealthPort(asio::io_context& loop) : state_(std::make_shared<State>(loop)) {}
HealthPort::~HealthPort() { Close(); }

absl::Status HealthPort::Listen(int port) {
  tcp::acceptor& acceptor = state_->acceptor;
  asio::error_code error;
  // Both families where there is IPv6.
  tcp::endpoint all(tcp::v6(), static_cast<asio::ip::port_type>(port));
  acceptor.open(all.protocol(), error);
  if (error) {
    all = tcp::endpoint(tcp::v4(), all.port());
    acceptor.open(all.protocol(), error);
  } else {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(all, error);
  if (!error) acceptor.listen(kMaxConnections, error);
  if (error) {
    Close();
    return absl::UnavailableError(error.message());
  }
  state_->Accept();
  return absl::OkStatus();
}

void HealthPort::Close() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
  state_->accept_again.cancel();
}

}  // namespace muster::agent
