// A training program's way into its job: who it is, the store of its round, and communicators with
// the other ranks.
//
//   MUSTER_ASSIGN_OR_RETURN(auto runtime, Runtime::FromEnvironment());
//   MUSTER_ASSIGN_OR_RETURN(auto world, runtime->MakeCommunicator("world"));
#pragma once

#include <cstdint>
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

// Communicators may outlive it, but make no new connections (Split) then.
//
// Threads: safe.
class Runtime {
 public:
  // Under `muster run`: one of the job's workers, connected to its agent. Without any launcher: one
  // rank of one.
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
  // `backend` is "gloo", "nccl" or "loopback" (one rank only); empty: gloo.
  // Errors: kInvalidArgument: no such backend; the network interface named in the environment
  //         (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) is none or cannot be used; more ranks than
  //         GPUs. kUnimplemented: this build lacks the backend. kDeadlineExceeded, kUnavailable:
  //         names the ranks that did not come, or what this machine lacks.
  absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& group,
                                                                 const std::string& backend = "",
                                                                 CommunicatorOptions options = {});

  // As MakeCommunicator with the group and the backend of `former`, a communicator of all ranks of
  // an earlier round that this process was in, which has failed or is given up: it ends here, calls
  // in flight with kAborted, whatever comes of it. Ranks that had none call MakeCommunicator at the
  // same place.
  //
  // Where all ranks were in it, in the same order, and some of those that were are gone, the
  // backend may make the new one from it (nccl, by ncclCommShrink, if it was made after
  // SurviveRounds); else, and where that fails, it is made from nothing. All ranks do the same, and
  // what comes is the same. Nothing is left that was captured with `former` (CapturedCalls). With
  // nccl the process keeps its GPU, whatever its local rank is now.
  //
  // Errors: those of MakeCommunicator; kInvalidArgument: `former` is null, or was made by Split.
  absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(
      std::unique_ptr<Communicator> former, CommunicatorOptions options = {});

  // The store of this round of the job, or of this process where it is alone.
  Store& store();

  // Says what the program does, and of which step (negative: before the first), on its progress
  // board (proto/base/progress_board.h), where it can be read without the program's help, also
  // after it has hung or died. Phases are those of muster::Phase: kStarting (until the first call),
  // kForward, kBackward, kReduce, kUpdate, kSave, kLoad, kEvaluate, kEnd (behind the last step;
  // Finish marks it) and kIdle, of the step that comes next (waiting for work by intention). A job
  // all of whose ranks mark, and of which none moves for --hang_timeout, has hung, unless all are
  // idle or at their end; so a program that marks, marks every step.
  //
  // Cost: tens of nanoseconds, no lock and no system call.
  void SetProgress(int64_t step, Phase phase);

  // For Engine::FenceCheckpoints: asks the rendezvous, by way of the agent, before a checkpoint is
  // published. May outlive the runtime.
  CheckpointFence checkpoint_fence() const;

  // The same question for a program that writes checkpoints of its own: may the one of `step` be
  // published (renamed into place, pointed to)? Asked by one rank, once all parts are on disk.
  //
  // Errors: kUnavailable: not now, because the rendezvous is out of reach or has not heard of this
  //         node for a while; train on, and ask again at the next checkpoint. kAborted: never;
  //         another round has begun, and this process is about to be stopped. Earlier checkpoints
  //         stay.
  absl::Status CommitCheckpoint(int64_t step);

  // Whether the job stops after `step`, which this rank has just finished (negative: before the
  // first). All ranks get the same answer at the same step, without a collective: save, call
  // Finish, and leave with 0. A rank asks after every step, or after every k-th, as all others do.
  // Steps only grow. Once a stop is under way it waits until all ranks have said how far they are.
  //
  // A program that never asks has promised nothing, and is stopped by SIGTERM. Without an agent, or
  // once it is gone: false. One thread asks.
  //
  // Cost: one atomic exchange, no lock and no system call, until there is a stop.
  bool ShouldStop(int64_t step);
  // Why ShouldStop said yes, for people: one sentence without its end.
  std::string stop_reason() const;

  // Tells the agent that this program goes on in the job's next round in the same process: where a
  // round ends for the sake of another worker or node, it is not signalled, but told so.
  // Communicators of this runtime fail with kAborted then, and requests to its store; the program
  // lets go of them and calls NextRound. It has half of --shutdown_timeout for that, after the loss
  // of a node at most five seconds. Without an agent nothing happens.
  void SurviveRounds();
  // This process's place in the job's next round, once there is one: its rank, size and store may
  // be others, its local rank is the same. The program has let go of all communicators of this
  // runtime but those that it will remake (RemakeCommunicator); the runtime is of no use
  // afterwards. May be called as soon as something has failed, before the agent has heard why. Once
  // the round is over it waits for as long as the agent lives and the job goes on: until enough
  // nodes are there.
  //
  // Errors: kDeadlineExceeded: for `patience` nobody has said that the round is over, so what
  // failed is the program's
  //         own; kCancelled: no round follows: the program should end (says why); kUnavailable: the
  //         agent is gone; kFailedPrecondition: SurviveRounds was not called, or there is no agent.
  //         FromEnvironment's.
  absl::StatusOr<std::unique_ptr<Runtime>> NextRound(absl::Duration patience);

  // Tells the agent that the program ends by intention after `step` steps. Call it last.
  //
  // Errors: kUnavailable, kDeadlineExceeded: the agent is gone.
  absl::Status Finish(int64_t step);

 private:
  struct State;
  explicit Runtime(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace muster
