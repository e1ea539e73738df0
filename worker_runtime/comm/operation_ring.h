// The record of recent operations of one process: what its communicators were asked to do and how
// far they came.
//
// A plain block of lock-free atomics without pointers, so that it can lie in memory shared with the
// agent (the progress board), who reads it while the worker runs, hangs or is dead. Writing takes
// no lock and no system call.
//
// Threads: safe. Readers may see an entry being replaced; they are told so.
// Cost:    a record is one fetch_add and eight stores, a change of state one compare-and-swap.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

enum class OperationState : uint8_t { kIssued, kStarted, kDone, kFailed };

inline constexpr int kOperationRingEntries = 4096;
inline constexpr int kOperationRingGroups = 64;
inline constexpr int kGroupNameBytes = 48;

struct OperationRecord {
  uint32_t group = 0;  // index into the table of groups
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kU8;
  OperationState state = OperationState::kIssued;
  int64_t sequence = 0;
  int64_t bytes = 0;  // of one block
};

class OperationRing {
 public:
  // Names one record; changes of state to a record that has been replaced since are dropped.
  using Ticket = uint64_t;
  static constexpr Ticket kNoTicket = ~Ticket{0};

  // The group's index. Names are cut to kGroupNameBytes - 1; groups beyond the table share its last
  // entry.
  uint32_t AddGroup(absl::string_view name);
  std::string GroupName(uint32_t group) const;

  Ticket Record(uint32_t group, const Operation& operation);
  void SetState(Ticket ticket, OperationState state);

  // How many records were ever made; the last kOperationRingEntries of them can be read.
  uint64_t num_records() const { return next_.load(std::memory_order_acquire); }
  // Nothing if it has been replaced, or is being written right now.
  std::optional<OperationRecord> Read(Ticket ticket) const;

 private:
  struct Entry {
    // 2 * ticket + 1 while being written, 2 * ticket + 2 when whole.
    std::atomic<uint64_t> stamp{0};
    std::atomic<uint64_t> what{0};   // group << 32 | kind << 8 | dtype
    std::atomic<uint64_t> state{0};  // ticket << 8 | state
    std::atomic<int64_t> sequence{0};
    std::atomic<int64_t> bytes{0};
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  std::atomic<uint64_t> next_{0};
  std::atomic<uint32_t> num_groups_{0};
  std::array<std::array<std::atomic<char>, kGroupNameBytes>, kOperationRingGroups> group_names_{};
  std::array<Entry, kOperationRingEntries> entries_{};
};

}  // namespace muster::comm
