// Whose commands those are that come without VALIDATE: what the connections of a host tell of the
// PyTorch on it. PyTorch 1 and 2.0 make two for each store, one after the other, and the second
// only ever watches keys (byte 7); PyTorch 2.1 makes one, on which byte 7 deletes a key. Source:
// README.md, "PyTorch 1 to 2.1".
//
// Pure.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "agent/torch_store/request.h"
#include "agent/torch_store/torch_store.h"

namespace muster::agent {

class BareClients {
 public:
  // From the address `host`.
  void Connect(StoreConnection connection, const std::string& host);
  void Disconnect(StoreConnection connection);
  // It has asked for `command`; `is_arrival`: only counted itself, as a store does that is made.
  void Note(StoreConnection connection, StoreCommand command, bool is_arrival);
  // It, and so its host, is of PyTorch 2.1 for certain.
  void NoteIsOf21(StoreConnection connection);

  bool IsOf21(StoreConnection connection) const;
  // Whether a byte 7 that is the first of `connection` can be that of the second connection of a
  // store: it was opened while another was there that had said no more than that it is there, and
  // no store of its host has begun to talk without a second one.
  bool MayWatch(StoreConnection connection) const;

 private:
  enum class Kind { kQuiet, kArrived, kTalks };  // said nothing or watches; counted itself; more
  struct Client {
    std::string host;
    Kind kind = Kind::kQuiet;
    bool has_company = false;  // at its opening: of one that had said no more than that it is there
  };
  struct Host {
    int quiet = 0, arrived = 0, talking = 0;
    bool is_of_2_1 = false;
    bool lacks_second = false;  // one of its stores has talked and had no second connection
  };

  static int& CountOf(Host& host, Kind kind);

  absl::btree_map<StoreConnection, Client> clients_;
  absl::btree_map<std::string, Host> hosts_;  // those that are connected
};

}  // namespace muster::agent
