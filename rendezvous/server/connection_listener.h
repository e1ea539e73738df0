// The server's listening socket. Connections are accepted here, on the loop, and handed to gRPC
// while descriptors last: gRPC itself would take every one that comes, until the process has none
// left for its own work.
//
// Since the kernel gives out the lowest free number, a connection whose number reaches
// `max_descriptor` means that all below are in use; it is closed at once.
//
// The first byte is looked at before that: torchrun's agents come here too, when the nodes of a job
// were started by different launchers, and their people should hear why nothing happens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/loop_mailbox.h"
#include "proto/io/unique_fd.h"

namespace muster::rendezvous {

struct ListenerEvents {
  std::function<void(UniqueFd connection, std::string peer)> on_connection;
  // A connection was closed because a torchrun agent is at its other end.
  std::function<void(std::string peer)> on_torchrun;
  // A connection was closed by its peer, who had said nothing.
  std::function<void(std::string peer)> on_probe;
  // A connection was closed because descriptors run out.
  std::function<void(std::string peer)> on_turned_away;
};

// "10.0.0.7:4242", "[fe80::1]:4242": how a peer is named in messages.
std::string ToText(const asio::ip::tcp::endpoint& address);

// Loop thread only.
class ConnectionListener {
 public:
  // Listens on exactly `address`; port 0 takes a free one.
  //
  // Errors: kAlreadyExists: another process listens there.
  //         kInvalidArgument: not an address of this machine.
  //         kPermissionDenied: a port below 1024.
  //         kUnavailable: anything else.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Listen(
      asio::io_context& loop, const asio::ip::tcp::endpoint& address, int max_descriptor);
  // Listens on a TCP socket that listens already.
  //
  // Errors: kUnavailable.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Adopt(asio::io_context& loop,
                                                                   UniqueFd socket,
                                                                   int max_descriptor);
  ~ConnectionListener();

  // The address it listens on.
  const asio::ip::tcp::endpoint& address() const { return address_; }
  // Once. Until then connections wait in the kernel.
  void Start(ListenerEvents events);

 private:
  ConnectionListener(asio::io_context& loop, int max_descriptor);
  asio::error_code BeginListening();
  void Await();
  void AcceptSome();
  void AwaitFirstByte(UniqueFd connection, std::string peer);
  void OnFirstByte(uint64_t id);

  struct Greeting;  // a connection that has said nothing yet

  const LoopMailbox mailbox_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer again_;
  const int max_descriptor_;
  asio::ip::tcp::endpoint address_;
  ListenerEvents events_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, std::unique_ptr<Greeting>> greetings_;
};

}  // namespace muster::rendezvous
