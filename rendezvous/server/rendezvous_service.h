// The gRPC side of the server: a listening port and its streams. Its other end is
// rendezvous/client/attend_stream.h.
//
// gRPC's threads only translate and post; every decision is the loop's. A stream that breaks ends
// itself, so ending the server never waits for the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "proto/base/ids.h"
#include "proto/io/credentials.h"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/server/connection_listener.h"
#include "rendezvous/server/handshake.h"
#include "rendezvous/server/new_connections.h"

namespace grpc {
class Server;
namespace experimental {
class ExternalConnectionAcceptor;
}
}  // namespace grpc

namespace muster::proto {
class FromAgent;
class FromServer;
}  // namespace muster::proto

namespace muster::rendezvous {

using StreamId = Id<struct StreamIdTag, uint64_t>;

// Called on the loop thread.
struct ServiceEvents {
  // Reads begin with ReadNext.
  std::function<void(StreamId, std::string peer_address, TlsPeer)> on_open;
  // The next comes after ReadNext.
  std::function<void(StreamId, const proto::FromAgent&)> on_message;
  std::function<void(StreamId)> on_written;
  // The last event of this stream, unless Finish came first.
  std::function<void(StreamId)> on_end;
  // A connection was closed, or will be by gRPC, before a stream was opened on it.
  std::function<void(const std::string& peer_address, const absl::Status& why)> on_wasted;
};

struct ServiceOptions {
  TlsMode tls = TlsMode::kOn;
  // The time that a connection has for its first stream.
  absl::Duration handshake_timeout = absl::Seconds(5);
};

// Loop thread only.
class RendezvousService {
 public:
  // Errors: kUnavailable: gRPC does not start.
  static absl::StatusOr<std::unique_ptr<RendezvousService>> Start(
      asio::io_context& loop, std::unique_ptr<ConnectionListener> listener,
      const std::vector<OwnerKey>& owners, ServiceOptions options, ServiceEvents events);
  // Breaks off what is open; no event follows.
  ~RendezvousService();
  RendezvousService(const RendezvousService&) = delete;
  RendezvousService& operator=(const RendezvousService&) = delete;

  void ListenAlso(std::unique_ptr<ConnectionListener> listener);
  int port() const { return listeners_.front()->address().port(); }
  void ReadNext(StreamId id);
  // One at a time: the next after on_written.
  void Write(StreamId id, proto::FromServer message);
  // Ends the stream with `status`; what is being written may be lost unless on_written has come.
  void Finish(StreamId id, const absl::Status& status);

 private:
  class Stream;
  class Acceptor;

  RendezvousService(asio::io_context& loop, ServiceOptions options, ServiceEvents events);
  ListenerEvents EventsOfListener();
  void OnProbeOnLoop(const std::string& peer);
  void OnConnectionOnLoop(UniqueFd connection, const std::string& peer);
  void OnWastedOnLoop(const std::string& peer);
  void OnOpenOnLoop(StreamId id, std::shared_ptr<Stream> stream);
  void OnMessageOnLoop(StreamId id, const proto::FromAgent& message);
  void OnWrittenOnLoop(StreamId id);
  void OnEndOnLoop(StreamId id);

  const LoopMailbox mailbox_;
  const ServiceOptions options_;
  const ServiceEvents events_;
  NewConnections new_connections_;
  bool was_probed_ = false;
  // A stream is shared by gRPC, until it is done with it, and by this map, until the loop has
  // dropped it.
  absl::btree_map<StreamId, std::shared_ptr<Stream>> streams_;
  std::unique_ptr<Acceptor> acceptor_;  // the server calls it: outlives it
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> way_in_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<ConnectionListener>> listeners_;  // one at least after Start
};

}  // namespace muster::rendezvous
