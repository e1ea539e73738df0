// How ranks tell each other of failures, and ask each other where they are. Nothing of it is sent
// while all goes well.
//
// A rank is connected with those a power of two away in either direction (ControlPeers), about
// 2 log2(n) of them. What it hears first of a failure or a question it passes on to all of them, so
// news reach everybody in log2(n) hops, around ranks that are gone; answers go back along the way
// that their question came.
//
// One thread receives from all peers; it answers questions also while the communicator's other
// threads are stuck.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/gloo/gloo_mesh.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

// A peer that closes its data connections has told why over the control channel, and one that is
// gone while ranks connect is about to say so on stderr. How long a rank waits for that before it
// makes its own sentence, and how long one that ends goes on telling.
inline constexpr absl::Duration kControlReasonTime = absl::Milliseconds(700);
inline constexpr absl::Duration kControlFlushTime = absl::Milliseconds(500);

// Whom `rank` is connected with, in ascending order.
std::vector<int> ControlPeers(int rank, int size);

// The mesh of a control channel, connected. A peer that cannot be reached is told of after
// kControlReasonTime.
//
// Errors: kDeadlineExceeded: options.deadline passed; kAborted: options.abort_switch was thrown;
//         GlooMesh::Reach's.
absl::StatusOr<std::unique_ptr<GlooMesh>> ConnectControl(std::shared_ptr<GlooDevice> device,
                                                         std::shared_ptr<Store> store,
                                                         const MeshOptions& options);

struct ControlSettings {
  int rank = 0;
  int size = 1;
  std::function<Position(int64_t sequence)> position;  // of this rank; any thread
  // A peer's failure, which the channel has told on; the channel's thread.
  std::function<void(absl::Status)> on_failure;
};

// Threads: safe.
class ControlChannel {
 public:
  // `mesh` is ConnectControl's and must outlive it.
  ControlChannel(GlooMesh& mesh, ControlSettings settings);
  ~ControlChannel();

  // Sends `failure` towards every rank, without waiting for it. The first failure alone travels,
  // whether it was told here or heard.
  void Tell(const absl::Status& failure);
  // What the others say of themselves until `deadline`, by rank; those that did not answer are
  // absent.
  std::map<int, Position> Ask(int64_t sequence, MonoTime deadline);
  // Lets what was told leave, until `deadline`.
  void Flush(MonoTime deadline);

 private:
  static constexpr size_t kMessageBytes = 1024;
  using Bytes = std::array<uint8_t, kMessageBytes>;
  struct Outgoing {
    Bytes bytes;
    TcpTransfer transfer;
  };
  struct Message;

  // One question: who asked, and which of theirs it is.
  using Question = std::pair<int, int64_t>;

  void Run();
  void Handle(const Message& message);
  void HandleQuestion(const Message& message);
  void HandleAnswer(const Message& message);
  void Send(int peer, Message message);

  GlooMesh& mesh_;
  const ControlSettings settings_;
  const std::vector<int> peers_;
  WaitPoint receiving_;
  std::atomic<bool> has_told_ = false;

  base::Mutex mu_;
  base::Condition answered_;
  int64_t num_asked_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<int64_t, std::map<int, Position>> answers_ ABSL_GUARDED_BY(mu_);  // by question
  // The peer that each question came from first; the channel's thread only.
  absl::btree_map<Question, int> routes_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
