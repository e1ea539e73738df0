#include "agent/sight/sight_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "asio/buffer.hpp"
#include "asio/local/stream_protocol.hpp"
#include "asio/read.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"
#include "proto/base/mono_time.h"
#include "proto/io/descriptors.h"
#include "rendezvous/link/inquiry_wire.h"

namespace muster::agent {
namespace {

using asio::local::stream_protocol;
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

struct SightSocket::State {
  struct Connection {
    explicit Connection(stream_protocol::socket its_socket) : socket(std::move(its_socket)) {}
    stream_protocol::socket socket;
    std::array<unsigned char, 4> header = {};
    std::string body;
    std::string answer;       // being written
    uint64_t inquiry_id = 0;  // of the one who asks
    bool is_asking = false;
    MonoTime idle_since = MonoNow();
  };
  using ConnectionPointer = std::shared_ptr<Connection>;

  State(asio::io_context& loop, OnInquiry on_inquiry_called)
      : acceptor(loop), accept_again(loop), on_inquiry(std::move(on_inquiry_called)) {}

  static void Accept(const std::shared_ptr<State>& self) {
    self->acceptor.async_accept(
        [self](const asio::error_code& error, stream_protocol::socket socket) {
          if (!self->acceptor.is_open()) return;
          if (error) return AcceptLater(self);
          if (IsOfThisUser(socket.native_handle())) Take(self, std::move(socket));
          Accept(self);
        });
  }

  // Out of descriptors, as a rule: the connection stays in the kernel's queue.
  static void AcceptLater(const std::shared_ptr<State>& self) {
    self->accept_again.expires_after(kAcceptPause);
    self->accept_again.async_wait([self](const asio::error_code& aborted) {
      if (!aborted && self->acceptor.is_open()) Accept(self);
    });
  }

  static void Take(const std::shared_ptr<State>& self, stream_protocol::socket socket) {
    if (self->connections.size() >= kSightConnectionsMax && !self->MakeRoom()) return;
    const uint64_t id = self->next_id++;
    self->connections[id] = std::make_shared<Connection>(std::move(socket));
    Read(self, id);
  }

  // False: all of them wait for their answers.
  bool MakeRoom() {
    auto idlest = connections.end();
    for (auto it = connections.begin(); it != connections.end(); ++it) {
      if (it->second->is_asking) continue;
      if (idlest == connections.end() || it->second->idle_since < idlest->second->idle_since) {
        idlest = it;
      }
    }
    if (idlest == connections.end()) return false;
    Forget(idlest->first);
    return true;
  }

  void Forget(uint64_t id) {
    const auto found = connections.find(id);
    if (found == connections.end()) return;
    asio::error_code ignored;
    found->second->socket.close(ignored);
    connections.erase(found);
  }

  // What is under way on a connection shares it, and does nothing once it has been forgotten.
  static void Read(const std::shared_ptr<State>& self, uint64_t id) {
    const ConnectionPointer connection = self->connections.at(id);
    asio::async_read(connection->socket, asio::buffer(connection->header),
                     [self, id, connection](const asio::error_code& error, size_t) {
                       if (!self->connections.contains(id)) return;
                       if (error) return self->Forget(id);
                       ReadBody(self, id);
                     });
  }

  static void ReadBody(const std::shared_ptr<State>& self, uint64_t id) {
    const ConnectionPointer connection = self->connections.at(id);
    size_t size = 0;
    for (size_t i = 0; i < 4; ++i) size |= size_t{connection->header[i]} << (8 * i);
    if (size > kInquiryFrameBytesMax) return self->Forget(id);
    connection->body.resize(size);
    asio::async_read(connection->socket, asio::buffer(connection->body),
                     [self, id, connection](const asio::error_code& error, size_t) {
                       if (!self->connections.contains(id)) return;
                       if (error) return self->Forget(id);
                       Hand(self, id, *connection);
                     });
  }

  static void Hand(const std::shared_ptr<State>& self, uint64_t id, Connection& connection) {
    absl::StatusOr<Inquiry> inquiry = rendezvous::InquiryFrom(connection.body);
    connection.is_asking = true;
    connection.inquiry_id = inquiry.ok() ? inquiry->id : 0;
    if (!inquiry.ok()) return Write(self, id, {.status = inquiry.status()});
    self->on_inquiry(id, *std::move(inquiry));
  }

  static void Write(const std::shared_ptr<State>& self, uint64_t id, InquiryAnswer answer) {
    const auto found = self->connections.find(id);
    if (found == self->connections.end() || !found->second->is_asking) return;
    const ConnectionPointer connection = found->second;
    answer.id = connection->inquiry_id;
    connection->answer = rendezvous::Framed(rendezvous::BytesOf(answer));
    asio::async_write(connection->socket, asio::buffer(connection->answer),
                      [self, id, connection](const asio::error_code& error, size_t) {
                        if (!self->connections.contains(id)) return;
                        if (error) return self->Forget(id);
                        connection->is_asking = false;
                        connection->idle_since = MonoNow();
                        connection->answer = {};
                        Read(self, id);
                      });
  }

  stream_protocol::acceptor acceptor;
  asio::steady_timer accept_again;
  OnInquiry on_inquiry;
  uint64_t next_id = 1;
  absl::btree_map<uint64_t, ConnectionPointer> connections;
};

SightSocket::SightSocket(asio::io_context& loop, OnInquiry on_inquiry)
    : state_(std::make_shared<State>(loop, std::move(on_inquiry))) {}

SightSocket::~SightSocket() { Close(); }

absl::Status SightSocket::Listen(const std::string& path) {
  asio::error_code error;
  const stream_protocol::endpoint place(path);
  state_->acceptor.open(place.protocol(), error);
  if (!error) state_->acceptor.bind(place, error);
  if (!error && ::chmod(path.c_str(), 0600) != 0) {
    error.assign(errno, asio::error::get_system_category());
  }
  if (!error) state_->acceptor.listen(kSightConnectionsMax, error);
  if (error) {
    Close();
    return absl::InternalError(absl::StrCat("cannot listen on ", path, ": ", error.message()));
  }
  State::Accept(state_);
  return absl::OkStatus();
}

void SightSocket::Answer(uint64_t connection, const InquiryAnswer& answer) {
  State::Write(state_, connection, answer);
}

void SightSocket::Close() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
  state_->accept_again.cancel();
  while (!state_->connections.empty()) state_->Forget(state_->connections.begin()->first);
  state_->on_inquiry = [](uint64_t, const Inquiry&) {};
}

}  // namespace muster::agent
