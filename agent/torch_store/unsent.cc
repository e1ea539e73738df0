#include "agent/torch_store/unsent.h"

#include <algorithm>
#include <iterator>

#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr size_t kPlaceBytes = 64;  // of a place in a queue

}  // namespace

void Unsent::Add(StoreConnection to, const SharedBytes& piece) {
  Queue& queue = queues_[to];
  queue.bytes += piece.size() + kPlaceBytes;
  queue.pieces.push_back(piece);
  Hold(piece);
}

void Unsent::Sent(StoreConnection to) {
  const auto found = queues_.find(to);
  if (found == queues_.end()) return;
  Queue& queue = found->second;
  queue.bytes -= queue.pieces.front().size() + kPlaceBytes;
  Release(queue.pieces.front());
  queue.pieces.pop_front();
  if (queue.pieces.empty()) queues_.erase(found);
}

void Unsent::Forget(StoreConnection to) {
  const auto found = queues_.find(to);
  if (found == queues_.end()) return;
  for (const SharedBytes& piece : found->second.pieces) Release(piece);
  queues_.erase(found);
}

size_t Unsent::BytesOf(StoreConnection to) const {
  const auto found = queues_.find(to);
  return found == queues_.end() ? 0 : found->second.bytes;
}

StoreConnection Unsent::Slowest() const {
  MUSTER_CHECK(!queues_.empty());
  return std::max_element(
             queues_.begin(), queues_.end(),
             [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; })
      ->first;
}

void Unsent::Hold(const SharedBytes& piece) {
  bytes_ += kPlaceBytes;
  if (holders_[piece.identity()]++ == 0) bytes_ += piece.size();
}

void Unsent::Release(const SharedBytes& piece) {
  bytes_ -= kPlaceBytes;
  const auto found = holders_.find(piece.identity());
  if (--found->second > 0) return;
  bytes_ -= piece.size();
  holders_.erase(found);
}

}  // namespace muster::agent
