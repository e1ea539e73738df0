#include "worker_runtime/comm/operation_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster::comm {
namespace {

int64_t Nanoseconds(MonoTime time) { return absl::ToInt64Nanoseconds(time.since_zero()); }

// Up to four letters; the first is the lowest byte.
uint32_t PackText(absl::string_view text) {
  uint32_t packed = 0;
  for (size_t i = 0; i < std::min<size_t>(text.size(), 4); ++i) {
    packed |= static_cast<uint32_t>(static_cast<uint8_t>(text[i])) << (8 * i);
  }
  return packed;
}

absl::Status CannotUse(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cannot ", what,
                                             " the progress board: ", std::strerror(errno),
                                             "; has the job that made it ended?"));
}

absl::Status NamingBoard(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("MUSTER_BOARD=", path, ": ", status.message()));
}

absl::StatusOr<ProgressBoard*> MapBoard(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return CannotUse("look at");
  // A shorter file would end the program with SIGBUS at the first mark beyond its end.
  if (info.st_size != static_cast<off_t>(kBoardBytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the progress board has ", info.st_size, " bytes instead of ", kBoardBytes,
                     ": are muster and the program of one version?"));
  }
  void* memory = mmap(nullptr, kBoardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return CannotUse("map");
  const auto board = AsBoard({static_cast<const std::byte*>(memory), kBoardBytes});
  if (board.ok()) return static_cast<ProgressBoard*>(memory);
  munmap(memory, kBoardBytes);
  return board.status();
}

}  // namespace

OperationRing::OperationRing()
    : private_board_(std::make_unique<ProgressBoard>()), board_(private_board_.get()) {
  board_->header = NewBoardHeader();
  board_->pid = getpid();
}

OperationRing::OperationRing(ProgressBoard* mapped) : board_(mapped) { board_->pid = getpid(); }

OperationRing::~OperationRing() {
  if (private_board_ == nullptr) munmap(board_, kBoardBytes);
}

absl::StatusOr<std::unique_ptr<OperationRing>> OperationRing::OpenBoard(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return NamingBoard(path, CannotUse("open"));
  const absl::StatusOr<ProgressBoard*> board = MapBoard(fd.get());
  if (!board.ok()) return NamingBoard(path, board.status());
  return std::unique_ptr<OperationRing>(new OperationRing(*board));
}

void OperationRing::MarkProgress(int64_t step, Phase phase) {
  const uint64_t count = step < 0 ? 0 : static_cast<uint64_t>(step) + 1;
  board_->marked_ns.store(Nanoseconds(MonoNow()), std::memory_order_relaxed);
  if (count != 0 && count != board_->progress.load(std::memory_order_relaxed) >> 8) {
    board_->num_steps.fetch_add(1, std::memory_order_relaxed);
  }
  board_->progress.store(count << 8 | static_cast<uint64_t>(phase), std::memory_order_release);
}

// A group's fields are readable once is_written is set; the slot is the caller's alone.
uint16_t OperationRing::AddGroup(const Group& added) {
  const uint32_t index = board_->num_groups.fetch_add(1, std::memory_order_acq_rel);
  if (index >= kBoardGroups) return kUnlistedGroup;
  BoardGroup& group = board_->groups[index];
  group.id.store(added.id, std::memory_order_relaxed);
  group.rank.store(added.rank, std::memory_order_relaxed);
  group.size.store(added.size, std::memory_order_relaxed);
  const size_t length = std::min<size_t>(added.name.size(), kBoardGroupNameBytes - 1);
  for (size_t i = 0; i < length; ++i) {
    group.name[i].store(added.name[i], std::memory_order_relaxed);
  }
  group.is_written.store(1, std::memory_order_release);
  return static_cast<uint16_t>(index);
}

// Each record is its own sequence lock: its stamp is odd while it is written and even when it is
// whole, so that a reader, in this process or another, that sees one even stamp before and after
// has read one record. Every store is a release: none can be seen before the odd stamp, and the
// even one not before any of them. Two writers meet in one record only when a whole ring has been
// issued between their first and last store.
OperationRing::Ticket OperationRing::Record(uint16_t group, const Operation& op, uint64_t chain,
                                            MonoTime now) {
  const Ticket ticket = board_->num_operations.fetch_add(1, std::memory_order_acq_rel);
  BoardOperation& entry = board_->operations[ticket % kBoardOperations];
  entry.stamp.store(2 * ticket + 1, std::memory_order_release);
  entry.what.store(uint64_t{group} << 48 | static_cast<uint64_t>(op.kind) << 32 |
                       PackText(muster::ToString(op.dtype)),
                   std::memory_order_release);
  entry.state.store(ticket << 8, std::memory_order_release);
  entry.sequence.store(op.sequence, std::memory_order_release);
  entry.bytes.store(op.bytes(), std::memory_order_release);
  entry.peer.store(op.peer, std::memory_order_release);
  entry.chain.store(chain, std::memory_order_release);
  entry.issued_ns.store(Nanoseconds(now), std::memory_order_release);
  entry.stamp.store(2 * ticket + 2, std::memory_order_release);
  if (op.is_collective() && group < kBoardGroups) {
    board_->groups[group].num_issued.store(op.sequence + 1, std::memory_order_release);
  }
  return ticket;
}

// The ticket's low bits stand in the word with the state: a change that comes after the record was
// replaced finds another ticket and is dropped.
void OperationRing::SetState(Ticket ticket, OperationState state) {
  if (ticket == kNoTicket) return;
  std::atomic<uint64_t>& word = board_->operations[ticket % kBoardOperations].state;
  uint64_t seen = word.load(std::memory_order_relaxed);
  const bool goes_on = state == OperationState::kStarted;
  while (seen >> 8 == ticket &&
         !word.compare_exchange_weak(
             seen, ticket << 8 | (goes_on ? seen & kAwaitedBit : 0) | static_cast<uint64_t>(state),
             std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void OperationRing::AddWait(absl::Duration waited) {
  board_->waited_ns.fetch_add(absl::ToInt64Nanoseconds(waited), std::memory_order_relaxed);
}

void OperationRing::SetAwaited(Ticket ticket, bool awaited) {
  if (ticket == kNoTicket) return;
  std::atomic<uint64_t>& word = board_->operations[ticket % kBoardOperations].state;
  uint64_t seen = word.load(std::memory_order_relaxed);
  const auto is_pending = [&seen] {
    return static_cast<OperationState>(seen & ~kAwaitedBit & 0xff) <= OperationState::kStarted;
  };
  while (seen >> 8 == ticket && is_pending() &&
         !word.compare_exchange_weak(seen, awaited ? seen | kAwaitedBit : seen & ~kAwaitedBit,
                                     std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace muster::comm
