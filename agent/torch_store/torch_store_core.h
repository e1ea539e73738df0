// The store that the agent of node 0 serves to PyTorch in one round, and what it tells people about
// who waits for whom. Bytes and times in, bytes and sentences out.
//
// Pure: same state, event and time give the same effects. Its shell: torch_store_server.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/torch_store/attendance.h"
#include "agent/torch_store/barriers.h"
#include "agent/torch_store/request.h"
#include "agent/torch_store/store_door.h"
#include "agent/torch_store/torch_store.h"
#include "agent/torch_store/unsent.h"
#include "agent/torch_store/wait_news.h"
#include "agent/torch_store/waits.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/gatherings.h"

namespace muster::agent {

// Which connections belong to this node's workers is to be looked up, and told by Identify.
struct LookUpWorkers {
  friend bool operator==(const LookUpWorkers&, const LookUpWorkers&) = default;
};
using TorchStoreEffect = std::variant<SendToClient, CutClient, LookUpWorkers, TellPeople>;

struct TorchStoreSettings {
  int world_size = 1;
  std::vector<StoreNode> nodes;  // by node rank; empty in very large rounds
  NodeRank own;                  // the node that serves
  StoreClients clients = StoreClients::kAll;
  TorchStoreLimits limits;
  NoticeTimes notices;
};

class TorchStoreCore {
 public:
  explicit TorchStoreCore(TorchStoreSettings settings);
  TorchStoreCore(const TorchStoreCore&) = delete;
  TorchStoreCore& operator=(const TorchStoreCore&) = delete;

  using Effects = std::vector<TorchStoreEffect>;
  // After CutClient for a connection, which can be the first that is said of it, there is nothing
  // to receive from it any more.
  Effects Open(StoreConnection connection, StoreClient client, MonoTime now);
  Effects Receive(StoreConnection connection, absl::string_view bytes, MonoTime now);
  // The oldest piece that was to be sent to it is on its way.
  Effects Sent(StoreConnection connection, MonoTime now);
  // Whether more should be received from it: its replies are not left unread.
  bool MayRead(StoreConnection connection) const;
  Effects Close(StoreConnection connection, MonoTime now);
  Effects Identify(const std::string& address, int port, Rank rank, MonoTime now);
  Effects Tick(MonoTime now);
  // The round is being stopped: that ranks are missing is news no longer.
  void StopTelling() { news_.Stop(); }

  // See WaitNews.
  std::vector<hangs::Gathering> Gatherings(MonoTime now) const { return news_.Gatherings(now); }

  // Earliest instant at which Tick would return something; InfiniteFuture() if none.
  MonoTime NextDeadline() const;

  // TorchStore's and StoreDoor's, and T4: the bytes that are held unread are within the budget; who
  // waits is known, and who waits at a barrier is one of them.
  std::string CheckInvariants() const;

 private:
  struct Session {
    RequestReader reader;
    size_t unread_bytes = 0;  // of `reader`, as counted
  };

  // Serves the whole requests of `connection`, until it leaves too many replies unread.
  void ServeAll(StoreConnection connection, MonoTime now, Effects& out);
  void Serve(StoreConnection from, TorchRequest request, MonoTime now, Effects& out);
  // Sends, unless that is more than it or all may leave unread.
  void Send(const SendToClient& send, Effects& out);
  // Its wait; null: it has none.
  const StoreWait* HeldBy(StoreConnection connection) const;
  static void Tell(std::optional<TellPeople> news, Effects& out);
  void Cut(StoreConnection connection, std::string reason, Effects& out);

  // Constant after construction.
  TorchStoreSettings settings_;

  TorchStore store_;
  Attendance attendance_;
  StoreDoor door_;
  Unsent unsent_;
  Barriers barriers_;
  Waits waits_;
  WaitNews news_;
  std::map<StoreConnection, Session> sessions_;  // references stay good
  size_t unread_bytes_ = 0;                      // of all sessions
};

}  // namespace muster::agent
