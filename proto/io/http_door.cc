#include "proto/io/http_door.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "asio/buffer.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/ip/v6_only.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"

namespace muster {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kAcceptAgain(100);
constexpr size_t kReadBytes = 4096;

struct Connection {
  explicit Connection(tcp::socket s) : socket(std::move(s)), deadline(socket.get_executor()) {}
  tcp::socket socket;
  asio::steady_timer deadline;
  std::string head;
  std::string answer;
  bool is_silent = true;  // it has not said all that it asks
};
using Shared = std::shared_ptr<Connection>;

}  // namespace

struct HttpDoor::State : std::enable_shared_from_this<State> {
  State(asio::io_context& loop, Serve its_serve, absl::Duration its_patience)
      : serve(std::move(its_serve)), patience(its_patience), acceptor(loop), accept_again(loop) {}

  // Awaits a connection before it is taken: whether there is room then, is known then.
  void AcceptIfThereMayBeRoom() {
    if (!acceptor.is_open() || is_awaiting || (IsFull() && OldestSilent() == nullptr)) return;
    is_awaiting = true;
    acceptor.async_wait(asio::socket_base::wait_read,
                        [self = shared_from_this()](const asio::error_code& error) {
                          self->is_awaiting = false;
                          if (!self->acceptor.is_open()) return;
                          if (error) return self->AcceptLater();
                          self->Accept();
                        });
  }

  void Accept() {
    if (IsFull()) {
      const Shared silent = OldestSilent();
      if (silent == nullptr) return;  // an end comes back here
      End(silent);
    }
    asio::error_code error;
    tcp::socket socket = acceptor.accept(error);
    if (error && error != asio::error::would_block && error != asio::error::connection_aborted) {
      return AcceptLater();
    }
    if (!error) Take(std::move(socket));
    AcceptIfThereMayBeRoom();
  }

  bool IsOpen(const Shared& connection) const {
    return std::find(open.begin(), open.end(), connection) != open.end();
  }
  bool IsFull() const { return open.size() >= kHttpConnectionsMax; }
  Shared OldestSilent() const {
    const auto silent =
        std::find_if(open.begin(), open.end(), [](const Shared& each) { return each->is_silent; });
    return silent == open.end() ? nullptr : *silent;
  }

  // Out of descriptors, as a rule: the connection stays in the kernel's queue, so trying again at
  // once would only spin.
  void AcceptLater() {
    accept_again.expires_after(kAcceptAgain);
    accept_again.async_wait([self = shared_from_this()](const asio::error_code& aborted) {
      if (!aborted) self->AcceptIfThereMayBeRoom();
    });
  }

  void Take(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(std::move(socket));
    open.push_back(connection);
    connection->deadline.expires_after(absl::ToChronoNanoseconds(patience));
    connection->deadline.async_wait(
        [self = shared_from_this(), connection](const asio::error_code& aborted) {
          if (!aborted) self->End(connection);
        });
    Read(connection);
  }

  void Read(const Shared& connection) {
    const size_t before = connection->head.size();
    connection->head.resize(before + kReadBytes);
    connection->socket.async_read_some(
        asio::buffer(connection->head.data() + before, kReadBytes),
        [self = shared_from_this(), connection, before](const asio::error_code& error,
                                                        size_t num_bytes) {
          if (error || !self->IsOpen(connection)) return self->End(connection);
          connection->head.resize(before + num_bytes);
          if (IsWholeHead(connection->head)) return self->Ask(connection);
          if (connection->head.size() < kHttpHeadBytesMax) return self->Read(connection);
          self->Answer(connection, "", {.status = 400, .body = "the head is too long\n"});
        });
  }

  void Ask(const Shared& connection) {
    connection->is_silent = false;
    HttpRequest request;
    if (!ParseHttpHead(connection->head, request)) {
      return Answer(connection, "", {.status = 400, .body = "this is not HTTP/1.1\n"});
    }
    if (request.method != "GET" && request.method != "HEAD") {
      return Answer(connection, request.method, {.status = 405, .body = "expected GET\n"});
    }
    serve(request,
          [weak = weak_from_this(), connection, method = request.method](HttpAnswer answer) {
            if (const auto self = weak.lock()) self->Answer(connection, method, answer);
          });
  }

  void Answer(const Shared& connection, const std::string& method, const HttpAnswer& answer) {
    if (!IsOpen(connection)) return;
    connection->is_silent = false;
    connection->answer = WriteHttpAnswer(answer, method);
    asio::async_write(connection->socket, asio::buffer(connection->answer),
                      [self = shared_from_this(), connection](const asio::error_code&, size_t) {
                        self->End(connection);
                      });
  }

  void End(const Shared& connection) {
    if (std::erase(open, connection) == 0) return;
    asio::error_code ignored;
    connection->deadline.cancel();
    connection->socket.shutdown(tcp::socket::shutdown_send, ignored);
    connection->socket.close(ignored);
    AcceptIfThereMayBeRoom();
  }

  void Close() {
    asio::error_code ignored;
    acceptor.close(ignored);
    accept_again.cancel();
    for (const Shared& connection : std::exchange(open, {})) {
      connection->deadline.cancel();
      connection->socket.close(ignored);
    }
  }

  const Serve serve;
  const absl::Duration patience;
  tcp::acceptor acceptor;
  asio::steady_timer accept_again;
  bool is_awaiting = false;
  std::vector<Shared> open;  // oldest first
};

HttpDoor::HttpDoor(asio::io_context& loop, Serve serve, absl::Duration patience)
    : state_(std::make_shared<State>(loop, std::move(serve), patience)) {}
HttpDoor::~HttpDoor() { Close(); }

absl::StatusOr<int> HttpDoor::Listen(const std::string& host, int port) {
  tcp::acceptor& acceptor = state_->acceptor;
  asio::error_code error;
  const auto number = static_cast<asio::ip::port_type>(port);
  tcp::endpoint at(tcp::v6(), number);
  if (!host.empty()) {
    at.address(asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error));
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", host, "' is not a numeric address (127.0.0.1, 0.0.0.0, [::1])"));
    }
  }
  acceptor.open(at.protocol(), error);
  if (error && host.empty()) {  // there is no IPv6
    at = tcp::endpoint(tcp::v4(), number);
    acceptor.open(at.protocol(), error);
  } else if (!error && host.empty()) {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(kHttpConnectionsMax, error);
  if (!error) acceptor.non_blocking(true, error);
  if (error) {
    Close();
    return absl::UnavailableError(error.message());
  }
  state_->AcceptIfThereMayBeRoom();
  return acceptor.local_endpoint(error).port();
}

void HttpDoor::Close() { state_->Close(); }

}  // namespace muster
