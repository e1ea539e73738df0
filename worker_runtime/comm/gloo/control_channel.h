// How ranks tell each other of failures, and ask each other where they are. Nothing of it is sent
// while all goes well.
//
// One thread receives from all peers; it answers questions also while the communicator's other
// threads are stuck.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "proto/base/condition.h"
#include "worker_runtime/comm/gloo/gloo_mesh.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

// A peer that closes its data connections has told why over the control channel. How long a rank
// waits for that before it makes its own sentence, and how long one that ends goes on telling.
inline constexpr absl::Duration kControlReasonTime = absl::Milliseconds(700);
inline constexpr absl::Duration kControlFlushTime = absl::Milliseconds(500);

// Where a rank is, seen from a collective's sequence number.
struct Position {
  bool reached = false;  // it has called that collective
  std::optional<Operation>
      operation;  // that one, or its last if it has not; nothing: none, or forgotten
};

struct ControlSettings {
  int rank = 0;
  int size = 1;
  std::function<Position(int64_t sequence)> position;  // of this rank; any thread
  std::function<void(absl::Status)> on_failure;        // a peer's failure; the channel's thread
};

// Threads: safe.
class ControlChannel {
 public:
  // `mesh` must outlive it.
  ControlChannel(GlooMesh& mesh, ControlSettings settings);
  ~ControlChannel();

  // Sends `failure` to every peer that can be reached, without waiting for it.
  void Tell(const absl::Status& failure);
  // What the peers say of themselves until `deadline`, by rank; those that did not answer are
  // absent.
  std::map<int, Position> Ask(int64_t sequence, MonoTime deadline);
  // Lets what was told leave, until `deadline`.
  void Flush(MonoTime deadline);

 private:
  static constexpr size_t kMessageBytes = 1024;
  using Bytes = std::array<uint8_t, kMessageBytes>;
  struct Outgoing {
    Bytes bytes;
    Transfer transfer;
  };
  struct Message;

  void Run();
  void Handle(const Message& message);
  void Send(int peer, const Message& message);

  GlooMesh& mesh_;
  const ControlSettings settings_;
  WaitPoint receiving_;

  base::Mutex mu_;
  base::Condition answered_;
  absl::btree_map<int64_t, std::map<int, Position>> answers_ ABSL_GUARDED_BY(mu_);  // by sequence
  std::vector<std::unique_ptr<Outgoing>> outgoing_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
