// The writer of the progress board (proto/base/progress_board.h): what the communicators of one
// process were asked to do and how far they came, and where its program is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/progress_board.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

// Threads: safe. Marking and recording take no lock and make no system call.
// Cost:    a record is one fetch_add and nine stores, a change of state one compare-and-swap.
class OperationRing {
 public:
  // Names one record; changes of state to a record that has been replaced since are dropped.
  using Ticket = uint64_t;
  static constexpr Ticket kNoTicket = ~Ticket{0};

  // A board in private memory: for a program without an agent.
  OperationRing();
  // The board that the agent has made at `path` for this process.
  //
  // Errors: kUnavailable: it cannot be opened or mapped; kInvalidArgument, kFailedPrecondition: it
  //         is no board, or one of another version or size. Each names MUSTER_BOARD and the path.
  static absl::StatusOr<std::unique_ptr<OperationRing>> OpenBoard(const std::string& path);
  ~OperationRing();
  OperationRing(const OperationRing&) = delete;
  OperationRing& operator=(const OperationRing&) = delete;

  // What the program does, and of which step. A negative step: none yet.
  void MarkProgress(int64_t step, Phase phase);

  struct Group {
    std::string name;  // cut to kBoardGroupNameBytes - 1
    uint32_t id = 0;   // the same on all of its ranks, and of no other group of the name
    int rank = 0;
    int size = 1;
  };
  // The group's index; groups beyond the table are kUnlistedGroup.
  uint16_t AddGroup(const Group& group);
  // `chain` is the group's hash up to and with this operation, see BoardOperation.
  Ticket Record(uint16_t group, const Operation& operation, uint64_t chain, MonoTime now);
  void SetState(Ticket ticket, OperationState state);
  // Whether the program waits for it, a thread or the queue of a device; forgotten once it has
  // ended.
  void SetAwaited(Ticket ticket, bool awaited);
  // A thread of the program has waited for an operation.
  void AddWait(absl::Duration waited);

  // How many records were ever made; the last kBoardOperations of them can be read.
  uint64_t num_records() const { return board_->num_operations.load(std::memory_order_acquire); }
  // Nothing if it has been replaced, or is being written right now.
  std::optional<BoardSnapshot::Record> Read(Ticket ticket) const {
    return ReadRecord(*board_, ticket);
  }
  BoardSnapshot Snapshot() const { return DecodeBoard(*board_); }

 private:
  explicit OperationRing(ProgressBoard* mapped);

  const std::unique_ptr<ProgressBoard> private_board_;  // null where it is mapped
  ProgressBoard* const board_;                          // that, or the mapping, unmapped at the end
};

}  // namespace muster::comm
