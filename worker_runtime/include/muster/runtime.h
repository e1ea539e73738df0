// A training program's entry into its job: its rank, the store of its round, and communicators with
// the other ranks.
//
//   MUSTER_ASSIGN_OR_RETURN(auto runtime, Runtime::FromEnvironment());
//   MUSTER_ASSIGN_OR_RETURN(auto world, runtime->MakeCommunicator("world"));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/checkpoint_fence.h"
#include "muster/communicator.h"
#include "muster/store.h"
#include "proto/base/progress_board.h"

namespace muster {

// Communicators may outlive the runtime, but can then make no new connections (Split).
//
// Threads: safe.
class Runtime {
 public:
  // The runtime of this process: under `muster run` one of the job's workers, connected to its
  // agent; without any launcher one rank of one.
  //
  // Errors: kInvalidArgument: a variable is missing or malformed; kFailedPrecondition: started by
  //         torchrun or by hand with more than one rank, or the progress board is of another
  //         version of muster; kUnavailable, kDeadlineExceeded: the agent does not answer, or its
  //         board cannot be opened.
  static absl::StatusOr<std::unique_ptr<Runtime>> FromEnvironment();
  // The same from variables by name.
  static absl::StatusOr<std::unique_ptr<Runtime>> FromEnvironment(
      const std::map<std::string, std::string>& environment);
  ~Runtime();

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  int num_nodes() const;
  // Rounds before this one that ran workers; attempt of the job, from 0.
  int restart_count() const;
  const std::string& run_id() const;

  // A communicator of all ranks. Every rank calls it with the same arguments, in the same order for
  // each group name; it waits for the others, at most options.connect_timeout.
  //
  // `backend` is "gloo", "nccl" or "loopback" (one rank only). Empty: the ranks agree on nccl where
  // each of them passes a GPU (options.device), none the same as another's, and has NCCL; else on
  // gloo, as in a program that computes on the host. Communicator::backend and notes say which it
  // is, and why. One rank alone needs no library.
  //
  // Two ranks with the same GPU cannot have nccl, which instances of MIG on one GPU cannot either.
  // A name asks NCCL alone where NCCL_HOSTID or NCCL_MULTI_RANK_GPU_ENABLE is set.
  //
  // Errors: kInvalidArgument: no such backend; the network interface named in the environment
  //         (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) is absent or unusable; nccl for ranks that
  //         share a GPU, with their names. kUnimplemented: this build lacks the backend.
  //         kDeadlineExceeded, kUnavailable: names the ranks that did not come, or what this
  //         machine lacks.
  absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& group,
                                                                 const std::string& backend = "",
                                                                 CommunicatorOptions options = {});

  // Makes a communicator as MakeCommunicator does, with the group and the backend that `former` was
  // asked for (where no backend was named, the ranks agree again). `former` is a communicator of
  // all ranks of an earlier round, and has failed or is given up. In every case `former` ends here,
  // and calls in flight get kAborted. Ranks without a former communicator call MakeCommunicator at
  // the same place.
  //
  // If all ranks were in `former`, in the same order, and only some of its ranks are gone, the
  // backend may derive the new communicator from it (nccl, by ncclCommShrink, if `former` was made
  // after SurviveRounds). Otherwise, or if that fails, it makes a fresh one. All ranks take the
  // same way, and the result is the same. Work captured with `former` (CapturedCalls) is lost. With
  // nccl a process that passes no device keeps its GPU, whatever its local rank is now.
  //
  // Errors: those of MakeCommunicator; kInvalidArgument: `former` is null, or was made by Split.
  absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(
      std::unique_ptr<Communicator> former, CommunicatorOptions options = {});

  // The store of this round of the job, or of this process where it is alone.
  Store& store();

  // Marks the phase and the step (negative: before the first) on the program's progress board
  // (proto/base/progress_board.h), where others can read them without the program's help, even
  // after it has hung or died. Phases are those of muster::Phase: kStarting (until the first call),
  // kForward, kBackward, kReduce, kUpdate, kSave, kLoad, kEvaluate, kEnd (after the last step;
  // Finish marks it) and kIdle (waiting for work on purpose, before the step given). A program that
  // marks must mark every step: if all ranks of a job mark and none moves for --hang_timeout, the
  // job counts as hung, unless all are idle or at their end.
  //
  // Cost: tens of nanoseconds, no lock and no system call.
  void SetProgress(int64_t step, Phase phase);

  // A fence for EngineOptions. It asks the rendezvous, through the agent, before a
  // checkpoint is published. May outlive the runtime.
  CheckpointFence checkpoint_fence() const;

  // Asks the same for a program that writes its own checkpoints: may the checkpoint of `step` be
  // published (renamed into place, pointed to)? One rank asks, once all parts are on disk.
  //
  // Errors: kUnavailable: not now, because the rendezvous is out of reach or has not heard of this
  //         node for a while; train on, and ask again at the next checkpoint. kAborted: never;
  //         another round has begun, and this process is about to be stopped. Earlier checkpoints
  //         stay. kInvalidArgument: a step below 0 or above 10^11.
  absl::Status CommitCheckpoint(int64_t step);

  // Whether the job stops after `step`, which this rank has just finished (negative: before the
  // first). All ranks get the same answer at the same step, without a collective; on true, save,
  // call Finish, and exit with 0. Every rank asks after each step, or after each k-th step, with
  // growing steps. While a stop is being agreed on, the call waits until all ranks have reported
  // their step.
  //
  // A program that never asks is stopped by SIGTERM. Returns false without an agent, or once the
  // agent is gone. Only one thread may ask.
  //
  // Cost: one atomic exchange, no lock and no system call, until there is a stop.
  bool ShouldStop(int64_t step);
  // Why ShouldStop returned true, for people: one sentence without a full stop.
  std::string stop_reason() const;

  // Tells the agent that this program continues into the job's next round in the same process. When
  // a round ends because of another worker or node, the agent then tells the program instead of
  // signalling it: communicators of this runtime and requests to its store fail with kAborted. The
  // program releases them and calls NextRound, within half of --shutdown_timeout, or within five
  // seconds after the loss of a node. Without an agent this does nothing.
  //
  // `on_round_over` is called then, once and on a thread of this runtime's own, after the
  // communicators have failed: it ends what else waits for other ranks. It neither ends this
  // runtime nor calls NextRound, which wait for it.
  void SurviveRounds(std::function<void()> on_round_over = nullptr);
  // This process's place in the job's next round. Its rank, size and store may differ from those of
  // this round; its local rank is the same. Before the call the program releases all communicators
  // of this runtime except those that it will remake (RemakeCommunicator); afterwards the runtime
  // cannot be used. It may call as soon as something fails, even before the agent knows why; after
  // a failure of its own (IsOwnFailure, in agreement.h) it ends instead, and the others go on.
  // After the end of the round the call waits until enough nodes are there, as long as the agent
  // lives and the job goes on.
  //
  // Errors: kDeadlineExceeded: the round did not end within `patience`, so the failure is the
  //         program's own; kCancelled: no round follows and the program should end (says why);
  //         kUnavailable: the agent is gone; kFailedPrecondition: SurviveRounds was not called, or
  //         there is no agent; those of FromEnvironment.
  absl::StatusOr<std::unique_ptr<Runtime>> NextRound(absl::Duration patience);

  // What a worker that was started for this place finds in its environment as `name`. Null: it is
  // not set.
  const std::string* variable(const std::string& name) const;

  // Tells the agent that the program ends on purpose after `step` steps. Call it last.
  //
  // Errors: kUnavailable, kDeadlineExceeded: the agent is gone.
  absl::Status Finish(int64_t step);

 private:
  struct State;
  explicit Runtime(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace muster
