#include "worker_runtime/plan/exchange_memory.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "muster/sum_tree.h"

namespace muster::plan {
namespace {

// How the ranks of a call send to each other: comm/gloo/gloo_collectives.cc.
enum class Route : uint8_t { kRing, kDoubling, kDirect };

// The bytes of an element in the type in which it is added.
int64_t WideBytes(DType dtype) {
  const bool is_narrow = dtype == DType::kBf16 || dtype == DType::kF16;
  return is_narrow ? BytesOf(DType::kF32) : BytesOf(dtype);
}

bool IsSum(const ExchangeCall& call) {
  return call.collective == Collective::kAllReduce || call.collective == Collective::kReduceScatter;
}

Route RouteOf(const ExchangeCall& call, int size) {
  if (!IsSum(call)) return Route::kRing;
  if (call.ordered) return Route::kDirect;
  const bool gives_all = call.collective == Collective::kAllReduce;
  const int64_t block_bytes = gives_all ? call.bytes : call.bytes / size;
  if (block_bytes <= kSmallBytes) return gives_all ? Route::kDoubling : Route::kDirect;
  return WideBytes(call.dtype) == BytesOf(call.dtype) ? Route::kRing : Route::kDirect;
}

int64_t NumRoots(const ExchangeCall& call, int rank, int size) {
  if (!call.ordered) return 1;
  const int64_t leaves = call.leaves_per_rank;
  return static_cast<int64_t>(
      CoverWithSubtrees({rank * leaves, (rank + 1) * leaves}, size * leaves).size());
}

void StageRing(const ExchangeCall& call, const GroupPlace& place, StagingBlocks& blocks) {
  if (!IsSum(call)) return;
  // What comes last goes where it belongs as it is read, unless it comes by a connection.
  const int64_t count = call.bytes / BytesOf(call.dtype);
  const int64_t largest = (count + place.size - 1) / place.size * BytesOf(call.dtype);
  const int num_blocks = place.size > 2 ? 2 : place.left_shares_memory ? 0 : 1;
  for (int i = 0; i < num_blocks; ++i) blocks.Take(largest);
}

// What the others contribute to this rank's block; then a wide copy of what is narrow, and of its
// own.
void StageDirect(const ExchangeCall& call, const GroupPlace& place, StagingBlocks& blocks) {
  const int64_t count = call.bytes / BytesOf(call.dtype);
  const auto begin = [&](int64_t rank) {
    return count / place.size * rank + count % place.size * rank / place.size;
  };
  const int64_t own = begin(place.rank + 1) - begin(place.rank);
  const bool is_narrow = WideBytes(call.dtype) != BytesOf(call.dtype);
  for (int distance = 1; distance < place.size; ++distance) {
    const int from = (place.rank + place.size - distance) % place.size;
    const int64_t roots = NumRoots(call, from, place.size);
    for (int64_t i = 0; i < roots; ++i) blocks.Take(own * BytesOf(call.dtype));
  }
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank != place.rank && !is_narrow) continue;
    const int64_t roots = NumRoots(call, rank, place.size);
    for (int64_t i = 0; i < roots; ++i) blocks.Take(own * WideBytes(call.dtype));
  }
}

void AddDoublingPeers(const GroupPlace& place, std::set<int>& senders) {
  const int num_paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(place.size)));
  if ((place.rank ^ num_paired) < place.size) senders.insert(place.rank ^ num_paired);
  for (int d = 1; d < num_paired && place.rank < num_paired; d *= 2) {
    senders.insert(place.rank ^ d);
  }
}

// What the engine asks for with the collective of an action.
ExchangeCall CallOf(const Action& action, const Exchange& exchange, const Program& program) {
  ExchangeCall call = {.collective = exchange.collective,
                       .dtype = program.types.parameters,
                       .bytes = exchange.bytes,
                       .ordered = program.ordered,
                       .leaves_per_rank = program.leaves_per_rank()};
  switch (action.kind()) {
    case ActionKind::kUnshard:
      call.dtype = program.types.OfParameters(program.buckets[BucketOf(action)].frozen);
      break;
    case ActionKind::kReplicate:
      call.leaves_per_rank *= program.buckets[BucketOf(action)].groups.shards.size;
      [[fallthrough]];
    case ActionKind::kReduce:
      call.dtype = program.types.reduced;
      break;
    case ActionKind::kSquares:
    case ActionKind::kShareLoss:
      call.ordered = false;
      [[fallthrough]];
    case ActionKind::kLoss:
      call.dtype = DType::kF64;
      break;
    default:
      break;
  }
  return call;
}

GroupPlace PlaceIn(const std::vector<int>& group, int rank, int ranks_of_node) {
  const auto at = std::find(group.begin(), group.end(), rank);
  const int left = at == group.begin() ? group.back() : *std::prev(at);
  return {.rank = static_cast<int>(at - group.begin()),
          .size = static_cast<int>(group.size()),
          .left_shares_memory = rank / ranks_of_node == left / ranks_of_node};
}

// What a rank asks a group for, each once: a call that comes again finds the blocks that it left,
// as far as these are kept (StagingBlocks::kMostKept).
std::vector<ExchangeCall> CallsIn(const Program& program, int group) {
  std::vector<ExchangeCall> calls;
  for (const Action& action : program.actions) {
    const Exchange* const exchange = ExchangeOf(action);
    if (exchange == nullptr || exchange->group != group) continue;
    const ExchangeCall call = CallOf(action, *exchange, program);
    if (std::find(calls.begin(), calls.end(), call) == calls.end()) calls.push_back(call);
  }
  return calls;
}

// Twice, since the second step finds the blocks of the first.
int64_t StagingOf(const std::vector<ExchangeCall>& calls, const GroupPlace& place) {
  StagingBlocks blocks;
  for (int step = 0; step < 2; ++step) {
    for (const ExchangeCall& call : calls) Stage(call, place, blocks);
  }
  return blocks.most();
}

}  // namespace

void Stage(const ExchangeCall& call, const GroupPlace& place, StagingBlocks& blocks) {
  if (place.size == 1) return;
  // A rank shows its call to its right neighbour, and sees the left one's.
  blocks.Take(kCallBytes);
  blocks.Take(kCallBytes);
  switch (RouteOf(call, place.size)) {
    case Route::kRing:
      StageRing(call, place, blocks);
      break;
    case Route::kDoubling: {
      const int64_t bytes = call.bytes / BytesOf(call.dtype) * WideBytes(call.dtype);
      blocks.Take(bytes);
      blocks.Take(bytes);
      break;
    }
    case Route::kDirect:
      StageDirect(call, place, blocks);
      break;
  }
  blocks.GiveBackAll();
}

std::vector<int> SendersOf(const ExchangeCall& call, const GroupPlace& place) {
  std::set<int> senders = {(place.rank + place.size - 1) % place.size};
  switch (RouteOf(call, place.size)) {
    case Route::kRing:
      break;
    case Route::kDoubling:
      AddDoublingPeers(place, senders);
      break;
    case Route::kDirect:
      for (int rank = 0; rank < place.size; ++rank) senders.insert(rank);
      break;
  }
  senders.erase(place.rank);
  return {senders.begin(), senders.end()};
}

ExchangeMemory ExchangeMemoryOf(const Program& program, int ranks_of_node) {
  ExchangeMemory memory;
  const int node = program.rank / ranks_of_node;
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const std::vector<int> group = program.RanksOfGroup(static_cast<int>(g));
    if (group.size() == 1) continue;
    const GroupPlace place = PlaceIn(group, program.rank, ranks_of_node);
    const std::vector<ExchangeCall> calls = CallsIn(program, static_cast<int>(g));
    memory.staging += StagingOf(calls, place);
    std::set<int> senders;
    // Before the first step all ranks agree, in small calls.
    if (g == 0) AddDoublingPeers(place, senders);
    for (const ExchangeCall& call : calls) {
      const std::vector<int> more = SendersOf(call, place);
      senders.insert(more.begin(), more.end());
    }
    if (g == 0) senders.insert((place.rank + place.size - 1) % place.size);
    for (const int sender : senders) {
      if (group[sender] / ranks_of_node == node) memory.rings += kCollectiveRingBytes;
    }
  }
  // Transfers are made in the world, each way between two ranks by a thread of its own.
  std::set<std::pair<bool, int>> ways;
  for (const Action& action : program.actions) {
    const Transfer* const transfer = action.If<Transfer>();
    if (transfer == nullptr) continue;
    const int peer = program.PeerOf(*transfer);
    if (!ways.insert({transfer->is_send, peer}).second) continue;
    memory.staging += kCallBytes;
    const bool is_near = peer / ranks_of_node == node;
    if (!transfer->is_send && is_near) memory.rings += kTransferRingBytes;
  }
  return memory;
}

}  // namespace muster::plan
