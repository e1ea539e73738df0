#include "worker_runtime/comm/operation_ring.h"

#include <algorithm>

namespace muster::comm {

uint32_t OperationRing::AddGroup(absl::string_view name) {
  const uint32_t group =
      std::min(num_groups_.fetch_add(1), static_cast<uint32_t>(kOperationRingGroups - 1));
  const size_t length = std::min(name.size(), static_cast<size_t>(kGroupNameBytes - 1));
  for (size_t i = 0; i < length; ++i) group_names_[group][i] = name[i];
  group_names_[group][length] = '\0';
  return group;
}

std::string OperationRing::GroupName(uint32_t group) const {
  std::string name;
  for (const std::atomic<char>& c : group_names_[group % kOperationRingGroups]) {
    if (c == '\0') break;
    name.push_back(c);
  }
  return name;
}

OperationRing::Ticket OperationRing::Record(uint32_t group, const Operation& operation) {
  const Ticket ticket = next_.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = entries_[ticket % kOperationRingEntries];
  entry.stamp.store(2 * ticket + 1, std::memory_order_release);
  entry.what.store(uint64_t{group} << 32 | static_cast<uint64_t>(operation.kind) << 8 |
                       static_cast<uint64_t>(operation.dtype),
                   std::memory_order_release);
  entry.state.store(ticket << 8, std::memory_order_release);
  entry.sequence.store(operation.sequence, std::memory_order_release);
  entry.bytes.store(operation.bytes(), std::memory_order_release);
  entry.stamp.store(2 * ticket + 2, std::memory_order_release);
  return ticket;
}

void OperationRing::SetState(Ticket ticket, OperationState state) {
  if (ticket == kNoTicket) return;
  std::atomic<uint64_t>& word = entries_[ticket % kOperationRingEntries].state;
  uint64_t seen = word.load(std::memory_order_relaxed);
  while (seen >> 8 == ticket &&
         !word.compare_exchange_weak(seen, ticket << 8 | static_cast<uint64_t>(state),
                                     std::memory_order_release, std::memory_order_relaxed)) {
  }
}

std::optional<OperationRecord> OperationRing::Read(Ticket ticket) const {
  const Entry& entry = entries_[ticket % kOperationRingEntries];
  if (entry.stamp.load(std::memory_order_acquire) != 2 * ticket + 2) return std::nullopt;
  const uint64_t what = entry.what.load(std::memory_order_acquire);
  OperationRecord record;
  record.group = static_cast<uint32_t>(what >> 32);
  record.kind = static_cast<OperationKind>(what >> 8 & 0xff);
  record.dtype = static_cast<DType>(what & 0xff);
  record.state = static_cast<OperationState>(entry.state.load(std::memory_order_acquire) & 0xff);
  record.sequence = entry.sequence.load(std::memory_order_acquire);
  record.bytes = entry.bytes.load(std::memory_order_acquire);
  if (entry.stamp.load(std::memory_order_acquire) != 2 * ticket + 2) return std::nullopt;
  return record;
}

}  // namespace muster::comm
