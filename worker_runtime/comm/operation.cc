#include "worker_runtime/comm/operation.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster::comm {
namespace {

template <typename T>
void Put(uint8_t*& out, T value) {
  std::memcpy(out, &value, sizeof(value));
  out += sizeof(value);
}

template <typename T>
T Take(const uint8_t*& in) {
  T value;
  std::memcpy(&value, in, sizeof(value));
  in += sizeof(value);
  return value;
}

std::string PeerText(const Operation& op) {
  switch (op.kind) {
    case OperationKind::kSend:
      return absl::StrCat(" to rank ", op.peer);
    case OperationKind::kRecv:
      return absl::StrCat(" from rank ", op.peer);
    default:
      return "";
  }
}

std::string SizeText(const Operation& op) {
  return absl::StrCat(FormatBytes(op.bytes()), " ", muster::ToString(op.dtype));
}

}  // namespace

absl::string_view ToString(ReduceOp op) {
  constexpr std::array<absl::string_view, 3> kNames = {"sum", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

std::pair<OperationKind, int> CounterOf(const Operation& op) {
  return op.is_collective() ? std::pair(OperationKind::kBarrier, -1) : std::pair(op.kind, op.peer);
}

BlockCounts CountBlocks(OperationKind kind, int size) {
  switch (kind) {
    case OperationKind::kReduceScatter:
      return {.input = size};
    case OperationKind::kAllGather:
      return {.output = size};
    case OperationKind::kAllToAll:
      return {.input = size, .output = size};
    case OperationKind::kSend:
      return {.output = 0};
    case OperationKind::kRecv:
      return {.input = 0};
    default:
      return {};
  }
}

std::string FormatBytes(int64_t bytes) {
  constexpr int64_t kKib = 1024;
  if (bytes >= kKib * kKib * kKib && bytes % (kKib * kKib * kKib) == 0) {
    return absl::StrCat(bytes / (kKib * kKib * kKib), " GiB");
  }
  if (bytes >= kKib * kKib && bytes % (kKib * kKib) == 0) {
    return absl::StrCat(bytes / (kKib * kKib), " MiB");
  }
  if (bytes >= kKib && bytes % kKib == 0) return absl::StrCat(bytes / kKib, " KiB");
  return absl::StrCat(bytes, bytes == 1 ? " byte" : " bytes");
}

std::string Name(const Operation& op) {
  return absl::StrCat(ToString(op.kind), " #", op.sequence, PeerText(op));
}

std::string Signature(const Operation& op) {
  if (op.kind == OperationKind::kBarrier) return "barrier()";
  std::string details;
  if (op.is_reduction()) {
    absl::StrAppend(&details, op.order == SumOrder::kOrdered ? "ordered " : "", ToString(op.reduce),
                    ", ");
    if (op.leaves_per_rank != 1) {
      absl::StrAppend(&details, op.leaves_per_rank, " leaves per rank, ");
    }
  }
  if (op.kind == OperationKind::kBroadcast) absl::StrAppend(&details, "root ", op.peer, ", ");
  return absl::StrCat(ToString(op.kind), "(", details, SizeText(op), ")");
}

std::string Describe(const Operation& op, absl::string_view group) {
  if (op.kind == OperationKind::kBarrier) return absl::StrCat(Name(op), " (group ", group, ")");
  return absl::StrCat(Name(op), " (group ", group, ", ", SizeText(op), ")");
}

void Encode(const Operation& op, uint8_t* out) {
  Put(out, static_cast<uint8_t>(op.kind));
  Put(out, static_cast<uint8_t>(op.dtype));
  Put(out, static_cast<uint8_t>(op.reduce));
  Put(out, static_cast<uint8_t>(op.order));
  Put(out, op.peer);
  Put(out, op.count);
  Put(out, op.leaves_per_rank);
  Put(out, op.sequence);
}

absl::StatusOr<Operation> DecodeOperation(const uint8_t* in) {
  const auto kind = Take<uint8_t>(in);
  const auto dtype = Take<uint8_t>(in);
  const auto reduce = Take<uint8_t>(in);
  const auto order = Take<uint8_t>(in);
  if (kind > static_cast<uint8_t>(OperationKind::kRecv) ||
      dtype > static_cast<uint8_t>(DType::kU8) || reduce > static_cast<uint8_t>(ReduceOp::kMin) ||
      order > static_cast<uint8_t>(SumOrder::kOrdered)) {
    return absl::InvalidArgumentError(
        "a rank sent an operation that this version does not know; do all ranks run one version?");
  }
  Operation op;
  op.kind = static_cast<OperationKind>(kind);
  op.dtype = static_cast<DType>(dtype);
  op.reduce = static_cast<ReduceOp>(reduce);
  op.order = static_cast<SumOrder>(order);
  op.peer = Take<int32_t>(in);
  op.count = Take<int64_t>(in);
  op.leaves_per_rank = Take<int64_t>(in);
  op.sequence = Take<int64_t>(in);
  return op;
}

int64_t BytesOnARing(const Operation& op, int size) {
  switch (op.kind) {
    case OperationKind::kAllReduce:
      return 2 * (op.bytes() - op.bytes() / size);
    case OperationKind::kReduceScatter:
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
      return (size - 1) * op.bytes();
    case OperationKind::kBroadcast:
      return op.bytes() - op.bytes() / size;
    case OperationKind::kSend:
      return op.bytes();
    case OperationKind::kRecv:
    case OperationKind::kBarrier:
      return 0;
  }
  return 0;
}

uint32_t Fingerprint(const Operation& op) {
  std::array<uint8_t, kOperationWireBytes> bytes;
  Encode(op, bytes.data());
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 16777619u;
  return hash;
}

uint64_t ChainHash(uint64_t previous, const Operation& op) {
  std::array<uint8_t, kOperationWireBytes> bytes;
  Encode(op, bytes.data());
  uint64_t hash = previous;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, &bytes[at], sizeof(word));
    // The finalizer of splitmix64: every bit of a word changes about half of the hash's.
    hash = hash * 0x9e3779b97f4a7c15 + word;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace muster::comm
