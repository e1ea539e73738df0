// ProveMemory: who touches what, and whether one of two that touch the same waits for the other. A
// pass is looked at use by use.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/moments.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::plan {
namespace {

// The blocks of the arena that an UNSHARD puts a bucket into.
BlockRange PlaceOf(const Unshard& unshard, const Program& program) {
  const Bucket& bucket = program.buckets[unshard.bucket];
  const Shards& shards = unshard.secondary ? bucket.groups.near : bucket.groups.shards;
  return {unshard.place, unshard.place + shards.PaddedOf(bucket.blocks.num_blocks())};
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
  ByMemory& by_memory() { return by_memory_; }
  const absl::Status& status() const { return status_; }

 private:
  void Touch(size_t moment, Memory memory, BlockRange blocks, bool writes, int slot = 0) {
    if (blocks.num_blocks() == 0) return;
    by_memory_[{memory, slot}].push_back({moment, blocks, writes});
  }
  void Touch(size_t moment, Memory memory, bool writes) { Touch(moment, memory, {0, 1}, writes); }

  // The blocks that the gradients of a bucket take while they are on their way.
  BlockRange Unreduced(int64_t place, int bucket) const {
    return {place, place + program_.buckets[bucket].padded_blocks()};
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
    if (!HasUses(pass.entries)) Touch(last, Memory::kValues, blocks, false);
    std::vector<bool> used(LearnedBuckets(program_).size());
    for (size_t e = 0; e < pass.entries.size(); ++e) {
      const Entry& entry = pass.entries[e];
      for (const int bucket : entry.written) {
        used[bucket] = true;
        Touch(moments_.Use(index, e) - 1, Memory::kSlot, program_.buckets[bucket].blocks, true,
              pass.slot);
      }
      if (entry.combine != kNone) continue;
      const int learned = GradientBucketOf(program_, entry.unit);
      if (learned != kNone) used[learned] = true;
      AddUse(index, pass, e);
    }
    // What no use wrote is cleared; where uses do not matter, it may be written until the end.
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

  void AddCopy(const Action& action, size_t moment) {
    const Exchange* const exchange = ExchangeOf(action);
    if (exchange == nullptr || exchange->padding == kNone) return;
    const int64_t end = exchange->padding + BytesOfCopy(action, program_);
    if (pads_in_unreduced_) {
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
      case ActionKind::kCombine:  // in memory of the pass, which waits (CheckReferences)
        break;
      case ActionKind::kLoss:
      case ActionKind::kShareLoss:
        Touch(moment, Memory::kLoss, true);
        break;
      case ActionKind::kNorm:
        for (const BlockRange& owned : OwnedBlocks(program_)) Result(moment, owned, false);
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
  const bool pads_in_unreduced_ = PadsInUnreduced(program_);
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

// What has touched one kind of memory so far, range by range. Accesses are added in an order in
// which each comes behind what it waits for: it is enough that each waits for the last one that
// wrote, and one that writes for those that have read since.
class Touched {
 public:
  explicit Touched(const Moments& moments) : moments_(moments) {}

  // The one that `access` should wait for and does not; null: there is none.
  const Access* Add(const Access& access) {
    Split(access.blocks.begin);
    Split(access.blocks.end);
    const auto begin = ranges_.lower_bound(access.blocks.begin);
    const auto end = ranges_.lower_bound(access.blocks.end);
    for (auto range = begin; range != end; ++range) {
      if (const Access* missed = Missed(range->second, access)) return missed;
    }
    if (access.writes) {
      ranges_.erase(begin, end);
      ranges_[access.blocks.begin] = {.end = access.blocks.end, .writer = &access};
    } else {
      Read(access);
    }
    return nullptr;
  }

 private:
  struct Range {
    int64_t end = 0;
    const Access* writer = nullptr;
    std::vector<const Access*> readers;  // since it was written
  };

  bool Waits(const Access& later, const Access& earlier) const {
    return earlier.moment == later.moment || moments_.IsBefore(earlier.moment, later.moment);
  }

  const Access* Missed(const Range& range, const Access& access) const {
    if (range.writer != nullptr && !Waits(access, *range.writer)) return range.writer;
    if (!access.writes) return nullptr;
    const auto missed = std::find_if(range.readers.begin(), range.readers.end(),
                                     [&](const Access* reader) { return !Waits(access, *reader); });
    return missed == range.readers.end() ? nullptr : *missed;
  }

  // So that a range begins at `block`, or none holds it.
  void Split(int64_t block) {
    auto behind = ranges_.upper_bound(block);
    if (behind == ranges_.begin()) return;
    auto& [begin, range] = *std::prev(behind);
    if (begin == block || range.end <= block) return;
    Range rest = range;
    range.end = block;
    ranges_.emplace_hint(behind, block, std::move(rest));
  }

  void Read(const Access& access) {
    int64_t next = access.blocks.begin;
    while (next < access.blocks.end) {
      const auto range = ranges_.lower_bound(next);
      const bool is_known = range != ranges_.end() && range->first == next;
      const int64_t begin = range == ranges_.end() ? access.blocks.end : range->first;
      if (is_known) {
        AddReader(range->second, access);
        next = range->second.end;
      } else {
        const int64_t end = std::min(begin, access.blocks.end);
        ranges_[next] = {.end = end, .readers = {&access}};
        next = end;
      }
    }
  }

  // The last one that computes stands for those before it.
  void AddReader(Range& range, const Access& access) const {
    const bool replaces = !range.readers.empty() && moments_.Computes(access.moment) &&
                          moments_.Computes(range.readers.back()->moment);
    if (replaces) range.readers.pop_back();
    range.readers.push_back(&access);
  }

  const Moments& moments_;
  std::map<int64_t, Range> ranges_;  // by begin; none where nothing has been touched
};

absl::Status ProveAccesses(const Program& program, const Moments& moments, Accesses& accesses) {
  for (auto& [memory, all] : accesses.by_memory()) {
    std::stable_sort(all.begin(), all.end(), [&](const Access& a, const Access& b) {
      return moments.PlaceOf(a.moment) < moments.PlaceOf(b.moment);
    });
    Touched touched(moments);
    for (const Access& access : all) {
      const Access* const missed = touched.Add(access);
      if (missed == nullptr) continue;
      const size_t one = moments.ActionOf(missed->moment);
      const size_t other = moments.ActionOf(access.moment);
      const size_t earlier = std::min(one, other);
      return CannotRun(NameOfAction(program, std::max(one, other)), " does not wait for action ",
                       earlier, " (", Describe(program.actions[earlier], program),
                       "), which touches the same memory");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string NameOfAction(const Program& program, size_t action) {
  return absl::StrCat("rank ", program.rank, ", action ", action, " (",
                      Describe(program.actions[action], program), ")");
}

namespace {

// Whether a pass comes to each sum once, and goes on only with it.
absl::Status CheckSums(const Program& program) {
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (action.If<Combine>() != nullptr) {
      const Point& at = action.at;
      const absl::Span<const Entry> entries =
          at.pass == kNone ? absl::Span<const Entry>() : EntriesOf(program.actions[at.pass]);
      const bool is_met = 0 <= at.entry && at.entry < static_cast<int>(entries.size()) &&
                          entries[at.entry].combine == static_cast<int>(i);
      if (!is_met) return CannotRun(NameOfAction(program, i), " is a sum that no pass comes to");
    }
    const absl::Span<const Entry> entries = EntriesOf(action);
    for (size_t e = 0; e < entries.size(); ++e) {
      const int sum = entries[e].combine;
      if (sum == kNone) continue;
      const Point here = {.pass = static_cast<int>(i), .entry = static_cast<int>(e)};
      const bool is_sum = 0 <= sum && sum < static_cast<int>(program.actions.size()) &&
                          program.actions[sum].If<Combine>() && program.actions[sum].at == here;
      const std::vector<int>& waits = entries[e].waits;
      if (is_sum && std::find(waits.begin(), waits.end(), sum) != waits.end()) continue;
      return CannotRun(NameOfAction(program, i), " goes on without its sum by action ", sum);
    }
  }
  return absl::OkStatus();
}

}  // namespace

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
  return CheckSums(program);
}

absl::Status ProveMemory(const Program& program) {
  MUSTER_RETURN_IF_ERROR(CheckReferences(program));
  Moments moments(program);
  if (!moments.Order()) {
    return CannotRun("rank ", program.rank, ": some of its actions wait for each other in a ring");
  }
  Accesses accesses(program, moments);
  MUSTER_RETURN_IF_ERROR(accesses.status());
  MUSTER_RETURN_IF_ERROR(ProveGathering(program, moments));
  return ProveAccesses(program, moments, accesses);
}

}  // namespace muster::plan
