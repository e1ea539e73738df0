// The progress board: what one worker does, in memory that it shares with its agent.
//
// Memory of a fixed layout, made by the agent (agent/process/board_memory.h), named by
// MUSTER_BOARD, and mapped by the worker (worker_runtime/comm/operation_ring.h). It holds atomics
// and no pointers, so that the agent reads it while the worker runs, hangs or is dead. Marking
// takes no lock and no system call.
//
// Both sides are of one machine and one build of muster as a rule; kBoardVersion tells where they
// are not.
//
// Threads: writers and readers of any thread or process; see OperationRing and ReadRecord.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/mono_time.h"

namespace muster {

// What a training program is doing. Values are written to boards: new ones go to the end.
enum class Phase : uint8_t {
  kStarting,
  kForward,
  kBackward,
  kReduce,
  kUpdate,
  kSave,
  kLoad,
  kIdle,
  kEvaluate,
  kEnd,
};
absl::string_view ToString(Phase phase);

// What a communicator is asked for. Values are written to boards and sent between ranks.
enum class OperationKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};
absl::string_view ToString(OperationKind kind);

enum class OperationState : uint8_t { kIssued, kStarted, kDone, kFailed };
absl::string_view ToString(OperationState state);

inline constexpr uint64_t kBoardMagic = 0x6472616f4273754d;  // ASCII, little-endian: Mus, Board
inline constexpr uint32_t kBoardVersion = 2;
inline constexpr int kBoardGroups = 64;
inline constexpr int kBoardOperations = 4096;
inline constexpr int kBoardGroupNameBytes = 40;
// The group of operations whose communicator found the table full.
inline constexpr uint16_t kUnlistedGroup = kBoardGroups;

// Written by the agent, once.
struct BoardHeader {
  uint64_t magic = kBoardMagic;
  uint32_t version = kBoardVersion;
  uint32_t header_bytes = sizeof(BoardHeader);
  uint64_t board_bytes = 0;
};

// One communicator. Written once, except for `num_issued`. Groups of one job that share a name have
// different ids; the members of one have the same.
struct BoardGroup {
  std::atomic<uint32_t> is_written;  // 1 once the rest may be read
  std::atomic<int32_t> rank;
  std::atomic<int32_t> size;
  std::atomic<uint32_t> id;
  std::atomic<int64_t> num_issued;                           // collectives that were called so far
  std::array<std::atomic<char>, kBoardGroupNameBytes> name;  // ends at a NUL
};

// One operation; a cache line.
struct BoardOperation {
  // 2 * ticket + 1 while being written, 2 * ticket + 2 when whole. Tickets count operations from 0.
  std::atomic<uint64_t> stamp;
  std::atomic<uint64_t> what;   // group << 48 | kind << 32 | the dtype's name, first letter lowest
  std::atomic<uint64_t> state;  // ticket << 8 | is awaited << 7 | OperationState
  std::atomic<int64_t> sequence;
  std::atomic<int64_t> bytes;  // of one block
  std::atomic<int64_t> peer;   // the root or the other rank; -1: none
  // Hash of the group's collectives up to and with this one, over what all ranks agree on: two
  // ranks whose hashes differ at one sequence number have called something else there, or before. A
  // send or receive has that of the collective before it.
  std::atomic<uint64_t> chain;
  std::atomic<int64_t> issued_ns;  // on the machine's monotonic clock
};

// Zero but for the header is an empty board.
struct ProgressBoard {
  BoardHeader header;
  std::atomic<int32_t> pid;  // 0: no worker has opened it
  uint32_t reserved;
  std::atomic<uint64_t> progress;    // (step + 1) << 8 | phase; 0: nothing was marked
  std::atomic<int64_t> marked_ns;    // when `progress` was
  std::atomic<int64_t> num_steps;    // that were marked, one after the other
  std::atomic<uint32_t> num_groups;  // that asked for a place; may exceed the table
  uint32_t reserved2;
  std::atomic<uint64_t> num_operations;  // that were ever recorded
  std::array<BoardGroup, kBoardGroups> groups;
  std::atomic<int64_t> waited_ns;  // that the program has waited for operations, all in all
  alignas(64) std::array<BoardOperation, kBoardOperations> operations;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::is_standard_layout_v<ProgressBoard>);
static_assert(std::is_trivially_destructible_v<ProgressBoard>);
// deploy/python/muster_marks.py and worker_runtime/include/muster/marks.h write these places.
static_assert(offsetof(ProgressBoard, pid) == 24 && offsetof(ProgressBoard, progress) == 32 &&
              offsetof(ProgressBoard, marked_ns) == 40 &&
              offsetof(ProgressBoard, num_steps) == 48 &&
              offsetof(ProgressBoard, waited_ns) == 4168);
static_assert(sizeof(BoardHeader) == 24 && sizeof(BoardGroup) == 64 &&
              sizeof(BoardOperation) == 64);

// The header of a new board; the rest of its kBoardBytes are zero.
inline constexpr size_t kBoardBytes = sizeof(ProgressBoard);
inline BoardHeader NewBoardHeader() { return {.board_bytes = kBoardBytes}; }

// `bytes` as a board: mapped, or a copy of one.
//
// Errors: kInvalidArgument: not a board; kFailedPrecondition: one of another version or size, in
//         words.
absl::StatusOr<const ProgressBoard*> AsBoard(absl::Span<const std::byte> bytes);

// What a reader makes of a board.
struct BoardSnapshot {
  struct Group {
    std::string name;
    uint32_t id = 0;
    int rank = 0;
    int size = 0;
    int64_t num_issued = 0;
  };
  struct Record {
    uint64_t ticket = 0;
    uint16_t group = 0;  // into groups; kUnlistedGroup: unknown
    OperationKind kind = OperationKind::kBarrier;
    std::string dtype;
    OperationState state = OperationState::kIssued;
    bool awaited = false;  // the program waits for its end: a thread, or the queue of a device
    int64_t sequence = 0;
    int64_t bytes = 0;
    int peer = -1;
    uint64_t chain = 0;
    MonoTime issued_at;
  };

  int pid = 0;
  std::optional<int64_t> step;  // nothing: not marked yet
  Phase phase = Phase::kStarting;
  MonoTime marked_at;
  absl::Duration waited;           // for operations, all in all
  std::vector<Group> groups;       // by index; of one being added just now, without its name
  std::vector<Record> operations;  // oldest first, at most kBoardOperations
};

inline constexpr uint64_t kAwaitedBit = 0x80;  // of BoardOperation::state

// A number that changes with everything that the worker writes, but for records older than its last
// 64. Cheap: for looking often.
uint64_t FingerprintOf(const ProgressBoard& board);

// The step that was marked last; -1: none was. Cheap, too.
int64_t StepOf(const ProgressBoard& board);

// Whether a thread of the program waits for one of the last 64 operations. Cheap, too.
bool IsWaiting(const ProgressBoard& board);

// One record, for who keeps a ticket; nothing if it has been replaced, is being written, or is
// none.
std::optional<BoardSnapshot::Record> ReadRecord(const ProgressBoard& board, uint64_t ticket);

// Reads while others may write: what is being replaced meanwhile is left out, and so is what no
// worker of this version can have written.
BoardSnapshot DecodeBoard(const ProgressBoard& board);

// "all_reduce #17 (group dp, 4194304 bytes f32), started".
std::string Describe(const BoardSnapshot& snapshot, const BoardSnapshot::Record& record);

}  // namespace muster
