// ProveMemory: who touches what, and whether one of two that touch the same waits for the other. A
// pass is looked at use by use.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::plan {
namespace {

// --- who waits for whom -------------------------------------------------------------------------

// A moment of a program: an action, or of a pass what comes before its first use (the first) and
// each use.
class Moments {
 public:
  explicit Moments(const Program& program) : program_(program) {
    for (const Action& action : program.actions) {
      first_.push_back(count_);
      count_ += 1 + EntriesOf(action).size();
    }
    before_.resize(count_);
    Connect();
  }

  size_t count() const { return count_; }
  size_t First(int action) const { return first_[action]; }
  size_t Last(int action) const {
    return first_[action] + EntriesOf(program_.actions[action]).size();
  }
  // The moment of use number `entry`.
  size_t Use(int pass, size_t entry) const { return first_[pass] + 1 + entry; }
  // Whose it is.
  size_t ActionOf(size_t moment) const {
    return std::upper_bound(first_.begin(), first_.end(), moment) - first_.begin() - 1;
  }

  // False if something waits for itself.
  bool Order() {
    std::vector<int> missing(count_);
    std::vector<std::vector<size_t>> followers(count_);
    for (size_t m = 0; m < count_; ++m) {
      missing[m] = static_cast<int>(before_[m].size());
      for (const size_t other : before_[m]) followers[other].push_back(m);
    }
    words_ = (count_ + 63) / 64;
    reach_.assign(count_ * words_, 0);
    std::vector<size_t> free;
    for (size_t m = 0; m < count_; ++m) {
      if (missing[m] == 0) free.push_back(m);
    }
    size_t num_ordered = 0;
    while (!free.empty()) {
      const size_t moment = free.back();
      free.pop_back();
      ++num_ordered;
      for (const size_t other : before_[moment]) Include(moment, other);
      for (const size_t next : followers[moment]) {
        if (--missing[next] == 0) free.push_back(next);
      }
    }
    return num_ordered == count_;
  }

  bool IsBefore(size_t earlier, size_t later) const {
    return (reach_[later * words_ + earlier / 64] >> (earlier % 64) & 1) != 0;
  }

 private:
  void Connect() {
    int last_compute = kNone;
    for (size_t i = 0; i < program_.actions.size(); ++i) {
      const Action& action = program_.actions[i];
      const int index = static_cast<int>(i);
      std::vector<size_t>& begin = before_[First(index)];
      for (const int other : action.after) begin.push_back(Last(other));
      // The BACKWARD is over by then for the memory that a REDUCE touches.
      if (const int of = BackwardOf(action); of != kNone) begin.push_back(Last(of));
      // What came before that use is over.
      if (action.at.pass != kNone) begin.push_back(First(action.at.pass) + action.at.entry);
      const absl::Span<const Entry> entries = EntriesOf(action);
      for (size_t e = 0; e < entries.size(); ++e) {
        std::vector<size_t>& use = before_[Use(index, e)];
        use.push_back(Use(index, e) - 1);
        for (const int other : entries[e].unshards) use.push_back(Last(other));
        for (const int other : entries[e].waits) use.push_back(Last(other));
      }
      if (LaneOf(action.kind()) != Lane::kCompute) continue;
      if (last_compute != kNone) begin.push_back(Last(last_compute));
      last_compute = index;
    }
  }

  void Include(size_t moment, size_t other) {
    uint64_t* own = &reach_[moment * words_];
    const uint64_t* its = &reach_[other * words_];
    for (size_t w = 0; w < words_; ++w) own[w] |= its[w];
    own[other / 64] |= uint64_t{1} << (other % 64);
  }

  const Program& program_;
  std::vector<size_t> first_;  // by action
  size_t count_ = 0;
  std::vector<std::vector<size_t>> before_;  // by moment: those that it waits for itself
  size_t words_ = 0;
  std::vector<uint64_t> reach_;  // [count_][words_]
};

// The blocks of the arena that an UNSHARD puts a bucket into.
BlockRange PlaceOf(const Unshard& unshard, const Program& program) {
  const Shards& shards = unshard.secondary ? program.secondary : program.shards;
  const int64_t blocks = program.buckets[unshard.bucket].blocks.num_blocks();
  return {unshard.place, unshard.place + shards.PaddedOf(blocks)};
}

// --- who touches what ---------------------------------------------------------------------------

enum class Memory : uint8_t {
  kValues,          // held whole
  kShards,          // of parameters that are gathered
  kGathered,        // by place; slot 1: frozen ones
  kSecondary,       // shards kept by a RESHARD
  kBorrowedValues,  // of other stages
  kSlot,            // whole gradients
  kUnreduced,       // gradients on their way, by place
  kHeads,           // of buckets, by bucket
  kGradientShards,
  kPadding,  // by place, in bytes
  kMoments,
  kSquares,
  kLoss,
  kClip,
};

struct Access {
  size_t moment = 0;
  BlockRange blocks = {0, 1};
  bool writes = false;
};

class Accesses {
 public:
  Accesses(const Program& program, const Moments& moments)
      : program_(program), moments_(moments), place_(program.buckets.size(), kNone) {
    for (size_t i = 0; i < program.actions.size(); ++i) Add(static_cast<int>(i));
  }

  using ByMemory = std::map<std::pair<Memory, int>, std::vector<Access>>;
  const ByMemory& by_memory() const { return by_memory_; }
  const absl::Status& status() const { return status_; }

 private:
  void Touch(size_t moment, Memory memory, BlockRange blocks, bool writes, int slot = 0) {
    if (blocks.num_blocks() == 0) return;
    by_memory_[{memory, slot}].push_back({moment, blocks, writes});
  }
  void Touch(size_t moment, Memory memory, bool writes) { Touch(moment, memory, {0, 1}, writes); }

  // The blocks that the gradients of a bucket take while they are on their way.
  BlockRange Unreduced(int64_t place, int bucket) const {
    const Bucket& its = program_.buckets[bucket];
    return {place, place + HeadBlocks(its) + program_.shards.PaddedOf(its.blocks.num_blocks())};
  }

  void Merges(const std::vector<Merge>& merges, size_t moment, BlockRange blocks) {
    for (const Merge& merge : merges) {
      Touch(moment, Memory::kSlot, blocks, true, merge.left_slot);
      Touch(moment, Memory::kSlot, blocks, false, merge.right_slot);
    }
  }

  // The sum over all ranks, of blocks that this one owns.
  void Result(size_t moment, BlockRange blocks, bool writes) {
    if (program_.streams_gradients) {
      Touch(moment, Memory::kGradientShards, blocks, writes);
    } else {
      Touch(moment, Memory::kSlot, blocks, writes, program_.sums.root_slots.front());
    }
  }

  void AddPass(int index, const Pass& pass) {
    const bool writes = WritesGradients(pass.of.kind);
    const BlockRange blocks = BlocksOfStage(program_, pass.of.stage);
    const size_t last = moments_.Last(index);
    Touch(last, Memory::kBorrowedValues, false);
    if (pass.of.kind == PassKind::kForward) Touch(last, Memory::kLoss, true);
    if (pass.entries.empty()) {
      Touch(last, Memory::kValues, blocks, false);
      if (writes && pass.slot != kNone) Touch(last, Memory::kSlot, blocks, true, pass.slot);
    }
    std::vector<bool> used(LearnedBuckets(program_).size());
    for (size_t e = 0; e < pass.entries.size(); ++e) {
      const int learned = GradientBucketOf(program_, pass.entries[e].unit);
      if (learned != kNone) used[learned] = true;
      AddUse(index, pass, e);
    }
    // What no use wrote is cleared.
    for (size_t b = 0; writes && pass.slot != kNone && b < used.size(); ++b) {
      const BlockRange of_bucket = program_.buckets[b].blocks;
      if (used[b] || !blocks.Overlaps(of_bucket)) continue;
      Touch(last, Memory::kSlot, of_bucket, true, pass.slot);
    }
    if (writes) Merges(pass.merges, last, blocks);
  }

  void AddUse(int index, const Pass& pass, size_t e) {
    const Entry& entry = pass.entries[e];
    const size_t moment = moments_.Use(index, e);
    for (const int bucket : BucketsOfUse(program_, entry.unit)) {
      const auto unshard =
          std::find_if(entry.unshards.begin(), entry.unshards.end(), [&](int other) {
            const Unshard* const gathers = program_.actions[other].If<Unshard>();
            return gathers != nullptr && gathers->bucket == bucket;
          });
      if (!program_.buckets[bucket].gathered) {
        Touch(moment, Memory::kValues, program_.buckets[bucket].blocks, false);
      } else if (unshard == entry.unshards.end()) {
        Fail(index, entry, "uses parameters that nothing has gathered");
      } else {
        Gathered(moment, program_.actions[*unshard].As<Unshard>(), false);
      }
    }
    const int bucket = GradientBucketOf(program_, entry.unit);
    if (!WritesGradients(pass.of.kind) || bucket == kNone) return;
    if (!program_.streams_gradients) {
      Touch(moment, Memory::kSlot, program_.buckets[bucket].blocks, true, pass.slot);
      return;
    }
    if (entry.place != kNone) place_[bucket] = entry.place;
    if (place_[bucket] == kNone) {
      Fail(index, entry, "has no memory for its gradients");
      return;
    }
    Touch(moment, Memory::kUnreduced, Unreduced(place_[bucket], bucket), true);
  }

  // What an UNSHARD has put in its place.
  void Gathered(size_t moment, const Unshard& unshard, bool writes) {
    const int arena = program_.buckets[unshard.bucket].frozen ? 1 : 0;
    Touch(moment, Memory::kGathered, PlaceOf(unshard, program_), writes, arena);
  }

  void Fail(int index, const Entry& entry, absl::string_view what) {
    status_.Update(
        CannotRun(NameOfAction(program_, index), ": its use of unit ", entry.unit, " ", what));
  }

  void TouchHeads(int bucket, size_t moment) {
    const auto head_of = [&](int b, bool writes) {
      Touch(moment, Memory::kHeads, {b, b + 1}, writes);
    };
    if (program_.buckets[bucket].head_elements > 0) head_of(bucket, true);
    const int behind = BucketBehind(program_, bucket);
    if (behind != kNone) head_of(behind, false);
  }

  void AddCopy(const Action& action, size_t moment) {
    const Exchange* const exchange = ExchangeOf(action);
    if (exchange == nullptr || exchange->padding == kNone) return;
    const int64_t end = exchange->padding + BytesOfCopy(action, program_);
    if (PadsInUnreduced(program_)) {
      const int64_t each = kBlockElements * BytesOf(program_.types.gradients);
      Touch(moment, Memory::kUnreduced, {exchange->padding / each, (end + each - 1) / each}, true);
    } else {
      Touch(moment, Memory::kPadding, {exchange->padding, end}, true);
    }
  }

  void AddReduce(const Reduce& reduce, size_t moment) {
    const Bucket& bucket = program_.buckets[reduce.bucket];
    if (reduce.place != kNone) {
      place_[reduce.bucket] = kNone;
      Touch(moment, Memory::kUnreduced, Unreduced(reduce.place, reduce.bucket), true);
      Touch(moment, Memory::kGradientShards, bucket.owned, true);
      TouchHeads(reduce.bucket, moment);
      return;
    }
    Merges(reduce.merges, moment, bucket.blocks);
    for (const int slot : program_.sums.root_slots) {
      Touch(moment, Memory::kSlot, bucket.blocks, slot == program_.sums.root_slots.front(), slot);
    }
  }

  void AddUpdate(const Update& update, size_t moment, BlockRange blocks) {
    const bool gathered = program_.buckets[update.bucket].gathered;
    Touch(moment, Memory::kClip, false);
    Result(moment, blocks, false);
    Touch(moment, Memory::kMoments, blocks, true);
    Touch(moment, gathered ? Memory::kShards : Memory::kValues, blocks, true);
  }

  void AddUnshard(const Unshard& unshard, size_t moment, BlockRange blocks) {
    if (unshard.place == kNone) {
      Touch(moment, Memory::kValues, blocks, true);
      return;
    }
    Gathered(moment, unshard, true);
    const BlockRange owned = program_.buckets[unshard.bucket].owned;
    Touch(moment, unshard.secondary ? Memory::kSecondary : Memory::kShards,
          unshard.secondary ? blocks : owned, false);
  }

  // The place is that of the UNSHARD that it ends.
  void AddReshard(const Reshard& reshard, size_t moment, BlockRange blocks) {
    Gathered(moment, program_.actions[reshard.unshard].As<Unshard>(), true);
    if (reshard.secondary) Touch(moment, Memory::kSecondary, blocks, true);
  }

  void AddTransfer(const Transfer& transfer, size_t moment) {
    if (transfer.what.payload != Payload::kValue) return;
    if (transfer.is_send) {
      Touch(moment, Memory::kValues, BlocksOfStage(program_, transfer.what.stage), false);
    } else {
      Touch(moment, Memory::kBorrowedValues, true);
    }
  }

  void Add(int index) {
    const Action& action = program_.actions[index];
    const size_t moment = moments_.First(index);
    const BlockRange blocks = BlocksOf(action, program_);
    AddCopy(action, moment);
    switch (action.kind()) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        AddPass(index, action.As<Pass>());
        break;
      case ActionKind::kReduce:
        AddReduce(action.As<Reduce>(), moment);
        break;
      case ActionKind::kReplicate:
        Result(moment, blocks, true);
        break;
      case ActionKind::kLoss:
      case ActionKind::kShareLoss:
        Touch(moment, Memory::kLoss, true);
        break;
      case ActionKind::kNorm:
        for (const BlockRange& normed : program_.normed) Result(moment, normed, false);
        Touch(moment, Memory::kSquares, true);
        break;
      case ActionKind::kSquares:
        Touch(moment, Memory::kSquares, true);
        break;
      case ActionKind::kClip:
        Touch(moment, Memory::kSquares, false);
        Touch(moment, Memory::kLoss, false);
        Touch(moment, Memory::kClip, true);
        break;
      case ActionKind::kUpdate:
        AddUpdate(action.As<Update>(), moment, blocks);
        break;
      case ActionKind::kUnshard:
        AddUnshard(action.As<Unshard>(), moment, blocks);
        break;
      case ActionKind::kReshard:
        AddReshard(action.As<Reshard>(), moment, blocks);
        break;
      case ActionKind::kSend:
      case ActionKind::kRecv:
        AddTransfer(action.As<Transfer>(), moment);
        break;
    }
  }

  const Program& program_;
  const Moments& moments_;
  std::vector<int64_t> place_;  // by bucket: where its gradients are being written
  ByMemory by_memory_;
  absl::Status status_;
};

// --- M3: gathered and given up ------------------------------------------------------------------

absl::Status ProveGathering(const Program& program, const Moments& moments) {
  std::vector<int> reshard(program.actions.size(), kNone);  // by UNSHARD
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Reshard* const action = program.actions[i].If<Reshard>();
    if (action == nullptr) continue;
    if (reshard[action->unshard] != kNone) {
      return CannotRun(NameOfAction(program, i), " gives up what was given up before");
    }
    reshard[action->unshard] = static_cast<int>(i);
  }
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const Unshard* const unshard = action.If<Unshard>();
    if (unshard != nullptr && unshard->place != kNone) {
      if (reshard[i] == kNone) {
        return CannotRun(NameOfAction(program, i), " gathers what is never given up");
      }
      const Bucket& bucket = program.buckets[unshard->bucket];
      if (PlaceOf(*unshard, program).end > program.gathered_blocks[bucket.frozen]) {
        return CannotRun(NameOfAction(program, i), " gathers to beyond its arena");
      }
    }
    const absl::Span<const Entry> entries = EntriesOf(action);
    for (size_t e = 0; e < entries.size(); ++e) {
      const size_t use = moments.Use(static_cast<int>(i), e);
      for (const int unshard : entries[e].unshards) {
        const int ends = reshard[unshard];
        if (ends == kNone || !moments.IsBefore(moments.First(ends), use)) continue;
        return CannotRun(NameOfAction(program, i), ": its use of unit ", entries[e].unit,
                         " comes after action ", ends, ", which gives it up");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ProveAccesses(const Program& program, const Moments& moments,
                           const Accesses& accesses) {
  for (const auto& [memory, all] : accesses.by_memory()) {
    for (size_t b = 0; b < all.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        if (!(all[a].writes || all[b].writes) || !all[a].blocks.Overlaps(all[b].blocks)) continue;
        if (all[a].moment == all[b].moment || moments.IsBefore(all[a].moment, all[b].moment) ||
            moments.IsBefore(all[b].moment, all[a].moment)) {
          continue;
        }
        const size_t one = moments.ActionOf(all[a].moment);
        const size_t other = moments.ActionOf(all[b].moment);
        const size_t earlier = std::min(one, other);
        return CannotRun(NameOfAction(program, std::max(one, other)), " does not wait for action ",
                         earlier, " (", Describe(program.actions[earlier], program),
                         "), which touches the same memory");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string NameOfAction(const Program& program, size_t action) {
  return absl::StrCat("rank ", program.rank, ", action ", action, " (",
                      Describe(program.actions[action], program), ")");
}

absl::Status CheckReferences(const Program& program) {
  const int count = static_cast<int>(program.actions.size());
  for (int i = 0; i < count; ++i) {
    const Action& action = program.actions[i];
    const auto is_earlier = [&](int other) { return 0 <= other && other < i; };
    const auto is_earlier_or_none = [&](int other) { return other == kNone || is_earlier(other); };
    if (!std::all_of(action.after.begin(), action.after.end(), is_earlier) ||
        !is_earlier_or_none(BackwardOf(action)) || !is_earlier_or_none(action.at.pass)) {
      return CannotRun(NameOfAction(program, i), " waits for what comes later");
    }
    const Reshard* const reshard = action.If<Reshard>();
    if (reshard != nullptr && !(is_earlier(reshard->unshard) &&
                                program.actions[reshard->unshard].If<Unshard>() != nullptr)) {
      return CannotRun(NameOfAction(program, i), " gives up what nothing has gathered");
    }
    for (const Entry& entry : EntriesOf(action)) {
      const auto is_any = [&](int other) { return 0 <= other && other < count; };
      if (!std::all_of(entry.waits.begin(), entry.waits.end(), is_any) ||
          !std::all_of(entry.unshards.begin(), entry.unshards.end(), is_any)) {
        return CannotRun(NameOfAction(program, i),
                         " has a use that waits for nothing that is there");
      }
    }
  }
  return absl::OkStatus();
}

std::string WhatIsNotProven(const Program& program, int64_t num_ranks) {
  std::string text;
  if (num_ranks > kMostProvenRanks) {
    text = absl::StrCat("that the ranks agree (there are ", num_ranks, ", and up to ",
                        kMostProvenRanks, " are compared)");
  }
  size_t count = 0;
  for (const Action& action : program.actions) count += 1 + EntriesOf(action).size();
  if (count <= kMostCheckedActions) return text;
  return absl::StrCat(text, text.empty() ? "" : "; ",
                      "that a rank's actions touch memory in order (it has ", count, ", and up to ",
                      kMostCheckedActions, " are compared)");
}

absl::Status ProveMemory(const Program& program) {
  MUSTER_RETURN_IF_ERROR(CheckReferences(program));
  Moments moments(program);
  if (moments.count() > kMostCheckedActions) return absl::OkStatus();
  if (!moments.Order()) {
    return CannotRun("rank ", program.rank, ": some of its actions wait for each other in a ring");
  }
  const Accesses accesses(program, moments);
  MUSTER_RETURN_IF_ERROR(accesses.status());
  MUSTER_RETURN_IF_ERROR(ProveGathering(program, moments));
  return ProveAccesses(program, moments, accesses);
}

}  // namespace muster::plan
