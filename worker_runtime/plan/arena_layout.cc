#include "worker_runtime/plan/arena_layout.h"

#include <algorithm>

#include "proto/base/status_macros.h"

namespace muster::plan {

int64_t ArenaLayout::Take(int64_t size, std::vector<int>& after) {
  int64_t place = 0;
  auto next = taken_.begin();
  while (next != taken_.end() && next->begin < place + size) {
    place = next->end;
    ++next;
  }
  taken_.insert(next, {.begin = place, .end = place + size});
  size_ = std::max(size_, place + size);
  Reuse(place, place + size, after);
  return place;
}

void ArenaLayout::Reuse(int64_t begin, int64_t end, std::vector<int>& after) {
  std::vector<Piece> left;
  for (const Piece& piece : given_) {
    if (piece.end <= begin || end <= piece.begin) {
      left.push_back(piece);
      continue;
    }
    if (std::find(after.begin(), after.end(), piece.action) == after.end()) {
      after.push_back(piece.action);
    }
    if (piece.begin < begin) left.push_back({piece.begin, begin, piece.action});
    if (end < piece.end) left.push_back({end, piece.end, piece.action});
  }
  given_ = std::move(left);
}

void ArenaLayout::Give(int64_t place, int action) {
  const auto found = std::find_if(taken_.begin(), taken_.end(),
                                  [&](const Piece& piece) { return piece.begin == place; });
  MUSTER_CHECK(found != taken_.end());
  given_.push_back({found->begin, found->end, action});
  taken_.erase(found);
}

}  // namespace muster::plan
