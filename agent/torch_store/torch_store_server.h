// The shell of TorchStoreCore: listens at a round's MASTER_ADDR:MASTER_PORT, on a thread of its
// own.
//
// The agent of node 0 makes one for each round (store_host.h) and ends it before the next. Nothing
// of a round is left in the next: listener, connections and keys go with the server, the
// connections by a reset, so that a fixed --master_port can be listened on again at once.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/torch_store/store_thread.h"
#include "agent/torch_store/torch_store_core.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/evidence/gatherings.h"

namespace muster::agent {

struct TorchStoreServerOptions {
  // MASTER_ADDR: a name or a number. Served on those of its addresses that are this machine's and
  // on loopback; on every address if none is (a service's name, a translated address).
  std::string host;
  int port = 0;
  TorchStoreSettings settings;
};

// Threads: one owner (the agent's loop); its own thread does the rest.
class TorchStoreServer {
 public:
  // Listens when it returns. `options.port` 0: any (see port()).
  //
  // Errors: kInvalidArgument or kResourceExhausted: the port cannot be listened on, with the
  // reason.
  static absl::StatusOr<std::unique_ptr<TorchStoreServer>> Start(TorchStoreServerOptions options);
  // Cuts every connection.
  ~TorchStoreServer();

  int port() const { return port_; }
  // A worker of this node; its connections are then known to be its rank's.
  void AddWorker(Rank rank, pid_t pid);
  // `answer` is called on the store's thread with TorchStoreCore::Gatherings, or never if the
  // server ends before.
  void AskWhoIsMissing(absl::AnyInvocable<void(std::vector<hangs::Gathering>)> answer);
  // Workers are being stopped: who is missing is told no more.
  void StopTelling();

 private:
  class Loop;
  TorchStoreServer(std::unique_ptr<StoreThread> thread, std::unique_ptr<Loop> loop, int port);

  int port_;
  // Destroyed in reverse: sockets and timers go before the loop that they belong to; the thread has
  // ended by then.
  std::unique_ptr<StoreThread> thread_;
  std::unique_ptr<Loop> loop_;  // while the thread runs, on the thread only
};

}  // namespace muster::agent
