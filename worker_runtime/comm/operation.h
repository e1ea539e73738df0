// What one call of a communicator asks for: what all ranks must agree on, and how messages name it.
//
// Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/communicator.h"
#include "proto/base/progress_board.h"
#include "worker_runtime/plan/staging.h"

namespace muster::comm {

absl::string_view ToString(ReduceOp op);

struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  SumOrder order = SumOrder::kFast;
  int32_t peer = -1;            // the root, or the other rank of a send or receive
  int64_t count = 0;            // elements of one block
  int64_t leaves_per_rank = 1;  // of ordered sums
  int64_t sequence = 0;         // collectives of the group, or sends (receives) between two ranks
  friend bool operator==(const Operation&, const Operation&) = default;

  bool is_collective() const {
    return kind != OperationKind::kSend && kind != OperationKind::kRecv;
  }
  bool is_reduction() const {
    return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
  }
  // The bytes of one block.
  int64_t bytes() const { return count * static_cast<int64_t>(SizeOf(dtype)); }
};

// Operations of a rank that run one after the other and are numbered together: the collectives of a
// group, the sends to a rank, the receives from it.
std::pair<OperationKind, int> CounterOf(const Operation& operation);

// Blocks of `count` elements that the input and the output of one rank have.
struct BlockCounts {
  int64_t input = 1;
  int64_t output = 1;
};
BlockCounts CountBlocks(OperationKind kind, int size);

// "all_reduce #17", "send #3 to rank 2".
std::string Name(const Operation& operation);
// "all_reduce(sum, 4 MiB f32)": without the sequence, exact enough to tell two calls apart.
std::string Signature(const Operation& operation);
// "all_reduce #17 (group dp, 4 MiB f32)".
std::string Describe(const Operation& operation, absl::string_view group);
// "4 MiB", "1000003 bytes": exact.
std::string FormatBytes(int64_t bytes);

// The position of a rank, seen from a collective's sequence number.
struct Position {
  bool reached = false;  // it has called that collective
  // That one, or its last if it has not; nothing: none, or forgotten.
  std::optional<Operation> operation;
};

// A fixed-size form for the wire between ranks of one machine type.
inline constexpr size_t kOperationWireBytes = plan::kCallBytes;
void Encode(const Operation& operation, uint8_t* out);
// Errors: kInvalidArgument: a value that no rank of this version sends.
absl::StatusOr<Operation> DecodeOperation(const uint8_t* in);

// What one rank sends for `operation` where data travel along a ring, or straight to their
// receivers: the bandwidth-optimal number, on average over the ranks.
int64_t BytesOnARing(const Operation& operation, int size);

// Differs (very likely) when the operations do; for keeping their messages apart.
uint32_t Fingerprint(const Operation& operation);

// The hash of a group's collectives up to and with `operation`, from the one before it (0 at
// first). Over all fields, which every rank agrees on: two ranks with one hash have (very likely)
// called the same things in the same order.
uint64_t ChainHash(uint64_t previous, const Operation& operation);

}  // namespace muster::comm
