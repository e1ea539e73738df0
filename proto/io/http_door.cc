#include "proto/io/http_door.h"

#include <chrono>
#include <set>
#include <utility>

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
};
using Shared = std::shared_ptr<Connection>;

}  // namespace

struct HttpDoor::State : std::enable_shared_from_this<State> {
  State(asio::io_context& loop, Serve its_serve, absl::Duration its_patience)
      : serve(std::move(its_serve)), patience(its_patience), acceptor(loop), accept_again(loop) {}

  void Accept() {
    is_accepting = true;
    acceptor.async_accept(
        [self = shared_from_this()](const asio::error_code& error, tcp::socket socket) {
          self->is_accepting = false;
          if (!self->acceptor.is_open()) return;
          if (error) return self->AcceptLater();
          self->Take(std::move(socket));
          self->AcceptIfThereIsRoom();
        });
  }

  void AcceptIfThereIsRoom() {
    if (!acceptor.is_open() || is_accepting || open.size() >= kHttpConnectionsMax) return;
    Accept();
  }

  // Out of descriptors, as a rule: the connection stays in the kernel's queue, so trying again at
  // once would only spin.
  void AcceptLater() {
    accept_again.expires_after(kAcceptAgain);
    accept_again.async_wait([self = shared_from_this()](const asio::error_code& aborted) {
      if (!aborted) self->AcceptIfThereIsRoom();
    });
  }

  void Take(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(std::move(socket));
    open.insert(connection);
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
          if (error || !self->open.contains(connection)) return self->End(connection);
          connection->head.resize(before + num_bytes);
          if (IsWholeHead(connection->head)) return self->Ask(connection);
          if (connection->head.size() < kHttpHeadBytesMax) return self->Read(connection);
          self->Answer(connection, "", {.status = 400, .body = "the head is too long\n"});
        });
  }

  void Ask(const Shared& connection) {
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
    if (!open.contains(connection)) return;
    connection->answer = WriteHttpAnswer(answer, method);
    asio::async_write(connection->socket, asio::buffer(connection->answer),
                      [self = shared_from_this(), connection](const asio::error_code&, size_t) {
                        self->End(connection);
                      });
  }

  void End(const Shared& connection) {
    if (open.erase(connection) == 0) return;
    asio::error_code ignored;
    connection->deadline.cancel();
    connection->socket.shutdown(tcp::socket::shutdown_send, ignored);
    connection->socket.close(ignored);
    AcceptIfThereIsRoom();
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
  bool is_accepting = false;
  std::set<Shared> open;
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
  if (error) {
    Close();
    return absl::UnavailableError(error.message());
  }
  state_->AcceptIfThereIsRoom();
  return acceptor.local_endpoint(error).port();
}

void HttpDoor::Close() { state_->Close(); }

}  // namespace muster
