// The store that the agent of node 0 serves to PyTorch in one round, and what it tells people about
// who waits for whom. Bytes and times in, bytes and sentences out.
//
// Pure: same state, event and time give the same effects. Its shell: torch_store_server.h.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/torch_store/attendance.h"
#include "agent/torch_store/bare_clients.h"
#include "agent/torch_store/barriers.h"
#include "agent/torch_store/request.h"
#include "agent/torch_store/store_door.h"
#include "agent/torch_store/torch_store.h"
#include "agent/torch_store/unsent.h"
#include "proto/base/mono_time.h"
#include "rendezvous/verdict/gatherings.h"

namespace muster::agent {

// Which connections belong to this node's workers is to be looked up, and told by Identify.
struct LookUpWorkers {
  friend bool operator==(const LookUpWorkers&, const LookUpWorkers&) = default;
};
// One line for the console.
struct TellPeople {
  bool is_warning = false;
  std::string text;
  friend bool operator==(const TellPeople&, const TellPeople&) = default;
};
using TorchStoreEffect = std::variant<SendToClient, CutClient, LookUpWorkers, TellPeople>;

struct TorchStoreSettings {
  int world_size = 1;
  std::vector<StoreNode> nodes;  // by node rank; empty in very large rounds
  NodeRank own;                  // the node that serves
  StoreClients clients = StoreClients::kAll;
  TorchStoreLimits limits;
  // A wait of this age is told while ranks are missing, from the round or at its barrier; again
  // this long after one of them has come, else after the repeat interval, which doubles each time.
  absl::Duration first_notice = absl::Seconds(10);
  absl::Duration repeat = absl::Seconds(60);
  absl::Duration lookup_lead = absl::Seconds(2);  // before a notice, whom connections belong to
};

class TorchStoreCore {
 public:
  explicit TorchStoreCore(TorchStoreSettings settings);

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
  void StopTelling() { is_telling_ = false; }

  // What somebody waits in now for ranks that have certainly not come: init_process_group until all
  // have, then barriers of all ranks. Sentences may say more, since these may end workers.
  std::vector<verdict::Gathering> Gatherings(MonoTime now) const;

  // Earliest instant at which Tick would return something; InfiniteFuture() if none.
  MonoTime NextDeadline() const;

  // TorchStore's and StoreDoor's, and T4: the bytes that are held unread are within the budget; who
  // waits is known, and who waits at a barrier is one of them.
  std::string CheckInvariants() const;

 private:
  // A wait that is given up and taken up again within kSlicePause is one: PyTorch's barriers wait
  // in slices.
  struct Session {
    RequestReader reader;
    bool waits = false;
    MonoTime since;
    MonoTime cancelled_at;
    std::string awaited;      // a key that was absent; empty once a wait was answered
    size_t unread_bytes = 0;  // of `reader`, as counted
  };

  // Serves the whole requests of `connection`, until it leaves too many replies unread.
  void ServeAll(StoreConnection connection, MonoTime now, Effects& out);
  void Serve(StoreConnection from, TorchRequest request, MonoTime now, Effects& out);
  // Sends, unless that is more than it or all may leave unread.
  void Send(const SendToClient& send, Effects& out);
  // Keeps count of who speaks in which way, for the first commands of others.
  void NoteSpeech(StoreConnection connection, const RequestReader& reader,
                  const TorchRequest& request);
  void NoteWait(StoreConnection connection, bool cancelled, MonoTime now);
  void Cut(StoreConnection connection, std::string reason, Effects& out);
  // Where it was said that ranks are missing: whether all are there now, or others are missing.
  void NoteArrival(MonoTime now, Effects& out);
  void NoteBarrier(MonoTime now, Effects& out);
  void TellOfAbsent(MonoTime now, Effects& out);
  void TellOfBarrier(MonoTime now, Effects& out);
  void TellIfGivenUp(StoreConnection connection, const Session& session, MonoTime now,
                     Effects& out);
  MonoTime NoticeDue() const;
  // It waits, or is between two slices of one wait.
  static bool Waits(const Session& session, MonoTime now);
  std::string Purpose(const std::string& key) const;

  // What was told of ranks that are missing, and when the next notice may come.
  struct Notices {
    bool has_told = false;
    int told_present = 0;     // how many were there then
    std::string key;          // that is awaited at the barrier
    std::string name;         // of the barrier
    MonoTime first_wait;      // that was told of
    MonoTime next;            // not before
    absl::Duration interval;  // until the notice after the next
  };

  // Constant after construction.
  TorchStoreSettings settings_;

  TorchStore store_;
  Attendance attendance_;
  StoreDoor door_;
  Unsent unsent_;
  BareClients bare_clients_;
  Barriers barriers_;
  std::map<StoreConnection, Session> sessions_;                       // references stay good
  absl::btree_set<std::pair<MonoTime, StoreConnection>> waiting_;     // by since
  absl::btree_set<std::pair<MonoTime, StoreConnection>> at_barrier_;  // those of them at one
  size_t unread_bytes_ = 0;                                           // of all sessions

  bool is_telling_ = true;
  bool looked_up_ = false;  // for the notice that is due next
  Notices of_absent_;       // of ranks that have not made their store
  Notices of_barrier_;      // of those that have not come to a barrier, once all have
  bool has_told_end_ = false;
};

}  // namespace muster::agent
