// Ranks of several processes: through shared memory within a machine, over Gloo's connections
// between machines, with our own collectives over both.
//
// Threads of a communicator: one for collectives; one per peer and direction for sends and
// receives, made when first used; one that listens to what peers tell (ControlChannel). Gloo's I/O
// thread and the watch for deadlines are shared by the communicators of a process.
//
// A message that its receiver has given up holds up all others on its connection, so what ranks
// tell each other of failures travels apart from data (ControlChannel). A rank is connected for
// data with those that an operation has needed so far. Data connections close with the first
// failure.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/store.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/gloo/exchange.h"
#include "worker_runtime/comm/gloo/gloo_mesh.h"
#include "worker_runtime/comm/gloo/lane.h"
#include "worker_runtime/comm/gloo/links.h"

namespace muster::comm {

class GlooCommunicator final : public CallCommunicator {
 public:
  // Waits until all ranks have come, at most options.connect_timeout. `prefix` of the keys in the
  // store is the same on all ranks and used once. A group of one rank needs no device (null) and no
  // store.
  //
  // Errors: those of Meet and ConnectControl.
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(Membership membership,
                                                            std::shared_ptr<GlooDevice> device,
                                                            std::shared_ptr<Store> store,
                                                            const std::string& prefix);
  ~GlooCommunicator() override;

  void Abort(absl::string_view reason) override;
  int64_t bytes_sent() const override { return parts_.links->bytes_sent(); }
  int64_t bytes_reserved() const override;

 private:
  enum class TellPeers { kYes, kNo };

  // What a communicator is made from.
  struct Parts {
    std::unique_ptr<Links> links;
    std::unique_ptr<GlooMesh> control_mesh;
    std::shared_ptr<Store> store;
    std::string prefix;
  };

  GlooCommunicator(Membership membership, Parts parts);

  void Start(Call call) override;
  absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership child,
                                                          const std::vector<int>& members,
                                                          const std::string& path) override;

  // Called on the lane's thread.
  void Run(Lane& lane, const Call& call);
  absl::Status RunOnLane(Exchange& exchange, const Call& call);
  absl::Status RunCollectiveOnLane(Exchange& exchange, const Call& call);
  absl::Status RunSend(Exchange& exchange, const Call& call);
  absl::Status RunRecv(Exchange& exchange, const Call& call);
  // Finds out why `call` ended with `status`, and fails the communicator with it.
  void Explain(const Call& call, const absl::Status& status, int lost_peer);

  Lane& LaneOf(const Operation& operation);
  void Fail(absl::Status failure, TellPeers tell);

  const Parts parts_;
  FailureCell failure_;
  std::unique_ptr<ControlChannel> control_;  // last to be set, first to end

  mutable base::Mutex lanes_mu_;
  // Keyed by kind (collectives as barrier) and peer.
  std::map<std::pair<OperationKind, int>, std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(lanes_mu_);
  bool failed_ ABSL_GUARDED_BY(lanes_mu_) = false;  // lanes made later start interrupted
};

}  // namespace muster::comm
