// The parameters that a program gathers for their uses and gives up again, and where in the arenas
// they lie meanwhile.
//
// Threads: thread-compatible; used once.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/program_draft.h"
#include "worker_runtime/plan/use_schedule.h"

namespace muster::plan {

class UnitGathers {
 public:
  // Adds to `draft`; both outlive this.
  UnitGathers(ProgramDraft& draft, const std::vector<UnitUse>& uses);

  // What the first use needs, before the first pass.
  void Begin();
  // What happens as a pass comes to use number `use`: units are given up, and others gathered.
  void ReleaseBefore(size_t use, Point at);
  void GatherBefore(size_t use, Point at);
  // What has gathered the unit that the entry is of.
  void AddTo(Entry& entry) const;
  // `pass` has ended, and `use` is the next, if any.
  void ReleaseAfter(int pass, size_t use);
  // No more will come: the sizes of the arenas.
  void Finish();

 private:
  struct Gathering {
    int unshard = kNone;  // what gathered it
    int kept = kNone;     // what keeps its secondary shards
  };
  // Gathers what the unit has in shards.
  void AddUnshardsOf(int unit, Point at);
  void AddUnshardOf(int bucket, Point at);
  // Gives up what the unit has gathered; `use` is the next use of any unit, if any.
  void AddReshardsOf(int unit, size_t use, Point at, int after_pass);
  void AddReshard(int bucket, bool comes_again, Point at, int after_pass);
  ArenaLayout& ArenaOf(int bucket) { return arenas_[draft_.program.buckets[bucket].frozen]; }

  ProgramDraft& draft_;
  const std::vector<UnitUse>& uses_;
  const UseSchedule schedule_;
  std::array<ArenaLayout, 2> arenas_;  // [frozen]
  std::vector<Gathering> gathering_;   // by bucket
  std::vector<size_t> end_of_uses_;    // by unit: behind its last use
};

}  // namespace muster::plan
