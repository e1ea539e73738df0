// Carries out the collectives of a program: what is added on this rank before, what is asked of the
// communicator, and what is put in its place afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/communicator.h"
#include "muster/sum_tree.h"
#include "muster/tensor.h"
#include "muster/work.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// Loss and tokens, which are added as gradients are.
struct LossSum {
  double loss = 0;
  double num_tokens = 0;  // exact: below 2^53
};

// Threads: thread-compatible.
class Reduction {
 public:
  // `groups` by the program's number; all outlive this, as do the others.
  Reduction(const plan::Program& program, std::vector<Communicator*> groups, RankState& state,
            Queue& queue);

  // A step begins. `tokens` of its micro-batches, on a device, if they are known by now; else they
  // go there once all losses were counted.
  void Begin(absl::Span<const double> tokens = {});
  // Tokens as AddLoss has counted them, by micro-batch.
  const std::vector<double>& tokens() const { return tokens_; }
  // Counts the loss of micro-batch `index` and the merges that follow it. `on_device` [1] of f64
  // holds the loss where the host cannot read it; else it is empty.
  void AddLoss(int64_t index, LossSum loss, const Tensor& on_device);
  // Copies the sum over all ranks, once LOSS and SHARE_LOSS are done, to `to` [2]: loss and tokens.
  void PutLoss(const Tensor& to);
  // Whether all losses of this rank's micro-batches of the step are finite. Errors: the device's.
  absl::StatusOr<bool> OwnLossIsFinite() const;
  // Adds slots of gradients: the merges of a backward pass, over all that this rank holds.
  void Merge(const std::vector<plan::Merge>& merges, plan::BlockRange blocks);

  // What the next COMBINE adds up, in place.
  void BringPart(Tensor part) { part_ = std::move(part); }
  // Starts REDUCE, REPLICATE, COMBINE, LOSS, SHARE_LOSS, SQUARES or UNSHARD; its memory belongs to
  // it until the work is done, and Finish must follow.
  Work Start(const plan::Action& action);
  void Finish(const plan::Action& action);

  // What the collectives of a group work in, each whole: as many on all its ranks, and in the same
  // order. Some may be empty.
  std::vector<Tensor> MemoryOf(int group) const;

  // The parameters are there no longer.
  void GiveUp(const plan::Reshard& reshard);

  // The bytes of copies that are padded.
  int64_t buffer_bytes() const {
    return plan::PadsInUnreduced(program_) ? 0 : program_.padding_bytes;
  }

 private:
  using LossPair = std::array<double, 2>;

  // What Start gives the communicator lies there.
  const Tensor& WorksIn(const plan::Action& action) const;
  Work StartReduce(const plan::Reduce& reduce);
  Work StartCombine(const plan::Combine& combine);
  Work StartLoss(const plan::SumLoss& sum);
  Work StartShareLoss(const plan::ShareLoss& share);
  // On a device the losses of micro-batches are added once all are there, by the tree of their
  // slots.
  void SumLosses();
  // Row `which` of micro_batch_losses_, some of it.
  Tensor OfMicroBatches(int which, LeafRange range) const {
    return micro_batch_losses_.Slice(which * program_.leaves_per_rank() + range.begin,
                                     {range.end - range.begin});
  }
  void PutTokens(absl::Span<const double> tokens);
  bool host_reads() const { return queue_.device().host_reads(); }
  Tensor TotalOf(int slot) const { return totals_.Slice(2 * slot, {2}); }
  Buffer LossBuffer(int slot);
  Work StartStreamedReduce(const plan::Reduce& reduce);
  Work StartReplicate(const plan::Replicate& replicate);
  Work StartUnshard(const plan::Unshard& unshard);
  Work StartGather(const plan::Unshard& unshard);
  Tensor StreamedPlace(const plan::Reduce& reduce) const;
  void FinishStreamedReduce(const plan::Reduce& reduce);
  void FinishPadded(const plan::Action& action);
  const plan::Bucket& BucketAt(int bucket) const { return program_.buckets[bucket]; }
  // This rank's part of `whole`, which the ranks of the group share.
  static Buffer ShareOf(const Buffer& whole, const Communicator& group);
  // Adds what the ranks of a group have in `roots`; the result, or this rank's part, is in the
  // first.
  Work Sum(const plan::Exchange& exchange, const std::vector<Buffer>& roots,
           int64_t leaves_per_rank);
  Communicator& GroupOf(const plan::Exchange& exchange) const { return *groups_[exchange.group]; }
  // The copy, number `index` of it: as many elements as the collective has, of which the first are
  // those that it works on.
  Tensor Padded(const plan::Exchange& exchange, DType dtype, size_t index = 0);

  // Constant after construction.
  const plan::Program& program_;
  const std::vector<Communicator*> groups_;
  RankState& state_;

  Queue& queue_;
  TensorPool pool_;
  const Tensor padding_;  // of its own, or the arena of gradients on their way (PadsInUnreduced)
  Tensor part_;           // of a COMBINE
  std::vector<LossPair> losses_;    // by slot; not on a device
  std::vector<LeafRange> summed_;   // by slot: the micro-batches in it
  bool own_loss_is_finite_ = true;  // as far as the host has seen
  // Tensors of f64, where the engine runs on a device.
  Tensor micro_batch_losses_;   // [2, leaves_per_rank]: losses, tokens
  Tensor totals_;               // [slots, 2]: what LOSS adds
  std::vector<double> tokens_;  // by micro-batch
  bool tokens_are_there_ = false;
  bool is_summed_ = false;
};

}  // namespace muster::engine
