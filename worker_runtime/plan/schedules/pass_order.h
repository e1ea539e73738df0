// What the ranks of a pipeline hand to each other around their passes, in one order on both sides
// of every way between two ranks. ProveOrder walks it, and programs are compiled from it.
//
// What travels is named by what it is, (payload, stage, micro-batch), so that two ranks which are
// each other's next and previous one cannot mistake one for the other.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

enum class Payload : uint8_t {
  kActivation,  // of a stage's end, forwards
  kGradient,    // of a stage's begin, backwards
  kTied,        // the gradient that a later stage adds to a parameter of an earlier one
  kValue,       // such a parameter's new value
};
absl::string_view ToString(Payload payload);

// What stages hand on.
struct Handed {
  Payload payload = Payload::kActivation;
  int stage = 0;             // that made it
  int64_t micro_batch = -1;  // -1: it is of the whole step
  friend auto operator<=>(const Handed&, const Handed&) = default;
};

// A stage that uses parameters of an earlier one, and hands their gradient to it with every
// micro-batch from the first such on.
struct TiedStages {
  int borrower = 0;
  int lender = 0;
  int64_t first_micro_batch = 0;
};

// What stages hand on, and the rank of the pipeline that it comes from or goes to.
struct HandedBy {
  Handed what;
  int place = 0;
  friend bool operator==(const HandedBy&, const HandedBy&) = default;
};

using HandedByStages = absl::InlinedVector<HandedBy, 2>;
// What a pass makes for other stages, each with the rank that has the stage.
HandedByStages MadeBy(const StagePass& pass, const Schedule& schedule,
                      absl::Span<const TiedStages> tied);
// What a pass computes from beside earlier passes of its own stage, each with the rank that makes
// it, which may be its own.
HandedByStages NeedsOf(const StagePass& pass, const Schedule& schedule,
                       absl::Span<const TiedStages> tied);

// A pass of one rank, and what travels before and after it. Receives come in the order in which the
// other rank sends, so that some are of later passes.
struct PassOfRank {
  StagePass pass;
  std::vector<HandedBy> receives;  // started before the pass
  std::vector<Handed> needs;       // of what is received: the pass waits for it
  std::vector<HandedBy> sends;     // once the pass is done
  // The rank has the stage behind, or before, too: what the pass makes for it stays where it is.
  bool keeps = false;
};

// `schedule` has each pass once, on the rank of its stage (CheckPasses). One whose ranks would wait
// for each other has an order too.
//
// [ranks]
std::vector<std::vector<PassOfRank>> OrderOfRanks(const Schedule& schedule,
                                                  absl::Span<const TiedStages> tied);
// The same of the rank at `place` alone.
std::vector<PassOfRank> PassesOf(const Schedule& schedule, absl::Span<const TiedStages> tied,
                                 int place);

}  // namespace muster::plan
