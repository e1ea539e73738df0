// Places in an arena for what comes and goes in an order that is known beforehand.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::plan {

class ArenaLayout {
 public:
  // The lowest free place of so many units. Adds to `after` the actions that must be done first:
  // they gave up what lay there.
  int64_t Take(int64_t size, std::vector<int>& after);
  // What lies at `place` may be overwritten once `action` is done.
  void Give(int64_t place, int action);

  // The size of the whole arena, in the units of Take.
  int64_t size() const { return size_; }

 private:
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    int action = 0;  // of a piece that was given back
  };
  // Takes [begin, end) out of what was given back.
  void Reuse(int64_t begin, int64_t end, std::vector<int>& after);

  std::vector<Piece> taken_;  // by place
  std::vector<Piece> given_;  // by nobody since
  int64_t size_ = 0;
};

}  // namespace muster::plan
