// Which connections have come to which barrier of the store, while somebody is still missing there.
// What is a barrier: README.md, "Keys".
//
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "agent/torch_store/attendance.h"
#include "agent/torch_store/request.h"
#include "agent/torch_store/torch_store.h"

namespace muster::agent {

struct StoreBarrier {
  std::string name;
  int64_t needed = 0;                     // how many; 0: it does not say
  absl::btree_set<StoreConnection> came;  // also those that gave up, or are gone
};

class Barriers {
 public:
  explicit Barriers(int world_size) : world_size_(world_size) {}

  // `request` of `from` was applied; `wait` is that of `from` now, null if it has none.
  void Note(StoreConnection from, const TorchRequest& request, const StoreWait* wait);

  // That at which a client waits for `awaited`, a key or the key of a BARRIER. Null: it is no
  // barrier's, or that one has opened. Of more than 64 at a time the later ones are not known.
  const StoreBarrier* Find(const std::string& awaited) const;

 private:
  void Come(StoreConnection from, const std::string& awaited, const std::string& name,
            int64_t needed);

  int world_size_;                                     // constant after construction
  absl::btree_map<std::string, StoreBarrier> closed_;  // by what is awaited
};

// "6 of 8 ranks are there; waiting for ranks 3 and 5 (node2)". Which ranks a barrier of some of
// those in `round` is for is not known: "1 of 2 is there (rank 3); waiting".
std::string ComeInWords(const StoreBarrier& barrier, const Attendance& round);
// The same when it is too late: "needs 8 ranks, of which 7 came; missing: rank 3 (node1)".
std::string NeedsInWords(const StoreBarrier& barrier, const Attendance& round);

}  // namespace muster::agent
