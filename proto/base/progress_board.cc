#include "proto/base/progress_board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr std::array<absl::string_view, 10> kPhaseNames = {
    "starting", "forward", "backward", "reduce",   "update",
    "save",     "load",    "idle",     "evaluate", "end"};
constexpr std::array<absl::string_view, 8> kKindNames = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast",
    "all_to_all", "barrier",        "send",       "recv"};
constexpr std::array<absl::string_view, 4> kStateNames = {"issued", "started", "done", "failed"};

template <typename Names, typename Enum>
absl::string_view NameOf(const Names& names, Enum value) {
  const size_t index = static_cast<size_t>(value);
  return index < names.size() ? names[index] : "?";
}

MonoTime FromNanoseconds(int64_t nanoseconds) {
  return MonoTime::At(absl::Nanoseconds(nanoseconds));
}

std::string UnpackText(uint32_t packed) {
  std::string text;
  for (; packed != 0; packed >>= 8) text.push_back(static_cast<char>(packed & 0xff));
  return text;
}

BoardSnapshot::Group ReadGroup(const BoardGroup& in) {
  BoardSnapshot::Group out;
  if (in.is_written.load(std::memory_order_acquire) != 1) return out;
  out.id = in.id.load(std::memory_order_relaxed);
  out.rank = in.rank.load(std::memory_order_relaxed);
  out.size = in.size.load(std::memory_order_relaxed);
  out.num_issued = in.num_issued.load(std::memory_order_relaxed);
  for (const std::atomic<char>& c : in.name) {
    const char each = c.load(std::memory_order_relaxed);
    if (each == '\0') break;
    out.name.push_back(each);
  }
  return out;
}

// How many of the newest a reader who looks often looks at.
constexpr uint64_t kLooked = 64;

}  // namespace

absl::string_view ToString(Phase phase) { return NameOf(kPhaseNames, phase); }
absl::string_view ToString(OperationKind kind) { return NameOf(kKindNames, kind); }
absl::string_view ToString(OperationState state) { return NameOf(kStateNames, state); }

absl::StatusOr<const ProgressBoard*> AsBoard(absl::Span<const std::byte> bytes) {
  if (bytes.size() < sizeof(BoardHeader) ||
      reinterpret_cast<uintptr_t>(bytes.data()) % alignof(ProgressBoard) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a progress board: it has ", bytes.size(), " bytes"));
  }
  const auto* board = reinterpret_cast<const ProgressBoard*>(bytes.data());
  const BoardHeader& header = board->header;
  if (header.magic != kBoardMagic) {
    return absl::InvalidArgumentError("not a progress board: it does not begin like one");
  }
  if (header.version != kBoardVersion || header.board_bytes != kBoardBytes ||
      bytes.size() != kBoardBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("a progress board of version ", header.version, ", ", header.board_bytes,
                     " bytes, in ", bytes.size(), " bytes; expected version ", kBoardVersion,
                     " and ", kBoardBytes, " bytes: are muster and the program of one version?"));
  }
  return board;
}

uint64_t FingerprintOf(const ProgressBoard& board) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t print = static_cast<uint64_t>(board.pid.load(std::memory_order_relaxed));
  const auto add = [&print](uint64_t value) { print = (print ^ value) * kPrime; };
  add(board.progress.load(std::memory_order_relaxed));
  add(static_cast<uint64_t>(board.marked_ns.load(std::memory_order_relaxed)));
  add(board.num_groups.load(std::memory_order_relaxed));
  const uint64_t end = board.num_operations.load(std::memory_order_acquire);
  add(end);
  for (uint64_t t = end < kLooked ? 0 : end - kLooked; t < end; ++t) {
    // The bit does not count: a program that waits in small turns does nothing else.
    add(board.operations[t % kBoardOperations].state.load(std::memory_order_relaxed) &
        ~kAwaitedBit);
  }
  return print;
}

int64_t StepOf(const ProgressBoard& board) {
  return static_cast<int64_t>(board.progress.load(std::memory_order_relaxed) >> 8) - 1;
}

bool IsWaiting(const ProgressBoard& board) {
  const uint64_t end = board.num_operations.load(std::memory_order_acquire);
  for (uint64_t t = end < kLooked ? 0 : end - kLooked; t < end; ++t) {
    const uint64_t state =
        board.operations[t % kBoardOperations].state.load(std::memory_order_relaxed);
    if (state >> 8 == t && (state & kAwaitedBit) != 0) return true;
  }
  return false;
}

std::optional<BoardSnapshot::Record> ReadRecord(const ProgressBoard& board, uint64_t ticket) {
  const BoardOperation& in = board.operations[ticket % kBoardOperations];
  const uint64_t whole = 2 * ticket + 2;
  if (in.stamp.load(std::memory_order_acquire) != whole) return std::nullopt;
  const uint64_t what = in.what.load(std::memory_order_acquire);
  const uint64_t state = in.state.load(std::memory_order_acquire);
  BoardSnapshot::Record out;
  out.ticket = ticket;
  out.group = std::min(static_cast<uint16_t>(what >> 48), kUnlistedGroup);
  out.kind = static_cast<OperationKind>(what >> 32 & 0xff);
  out.dtype = UnpackText(static_cast<uint32_t>(what));
  out.state = static_cast<OperationState>(state & 0x7f);
  out.awaited = (state & kAwaitedBit) != 0;
  out.sequence = in.sequence.load(std::memory_order_acquire);
  out.bytes = in.bytes.load(std::memory_order_acquire);
  out.peer = static_cast<int>(in.peer.load(std::memory_order_acquire));
  out.chain = in.chain.load(std::memory_order_acquire);
  out.issued_at = FromNanoseconds(in.issued_ns.load(std::memory_order_acquire));
  if (in.stamp.load(std::memory_order_acquire) != whole) return std::nullopt;
  const bool is_known = out.kind <= OperationKind::kRecv && out.state <= OperationState::kFailed;
  return is_known ? std::make_optional(std::move(out)) : std::nullopt;
}

BoardSnapshot DecodeBoard(const ProgressBoard& board) {
  BoardSnapshot out;
  out.pid = board.pid.load(std::memory_order_acquire);
  const uint64_t progress = board.progress.load(std::memory_order_acquire);
  if (progress >> 8 != 0) out.step = static_cast<int64_t>(progress >> 8) - 1;
  out.phase = static_cast<Phase>(progress & 0xff);
  out.marked_at = FromNanoseconds(board.marked_ns.load(std::memory_order_acquire));
  out.waited = absl::Nanoseconds(board.waited_ns.load(std::memory_order_relaxed));
  const uint32_t num_groups = board.num_groups.load(std::memory_order_acquire);
  for (uint32_t g = 0; g < std::min<uint32_t>(num_groups, kBoardGroups); ++g) {
    out.groups.push_back(ReadGroup(board.groups[g]));
  }
  const uint64_t end = board.num_operations.load(std::memory_order_acquire);
  for (uint64_t t = end < kBoardOperations ? 0 : end - kBoardOperations; t < end; ++t) {
    if (auto record = ReadRecord(board, t)) out.operations.push_back(*std::move(record));
  }
  return out;
}

std::string Describe(const BoardSnapshot& snapshot, const BoardSnapshot::Record& record) {
  const std::string group =
      record.group < snapshot.groups.size() ? snapshot.groups[record.group].name : "unlisted";
  std::string peer;
  if (record.kind == OperationKind::kSend) peer = absl::StrCat(" to rank ", record.peer);
  if (record.kind == OperationKind::kRecv) peer = absl::StrCat(" from rank ", record.peer);
  const std::string size = record.kind == OperationKind::kBarrier
                               ? ""
                               : absl::StrCat(", ", record.bytes, " bytes ", record.dtype);
  return absl::StrCat(ToString(record.kind), " #", record.sequence, peer, " (group ", group, size,
                      "), ", ToString(record.state));
}

}  // namespace muster
