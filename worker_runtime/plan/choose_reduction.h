// When sharded gradients are reduced, where a plan leaves it open: with each micro-batch, whose
// gradients then never lie whole, or once in a step.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "muster/plan.h"

namespace muster::plan {

// What a step of one rank costs under one choice.
struct ReductionCost {
  int64_t memory_bytes = 0;
  int64_t sent_bytes = 0;
};

struct ReductionChoice {
  GradientReduction chosen = GradientReduction::kOnce;  // never kChosen
  std::string reason;                                   // ends the sentence "chosen because ..."
};

// A choice that takes at least as much memory and sends at least as much is never taken. Where
// neither is that, model and plan alone decide: once, which sends less, unless it takes more than
// half as much memory again. `memory_bytes_max` (0: not known) overrules this only for a choice
// that does not fit while the other does.
ReductionChoice ChooseReduction(ReductionCost each_micro_batch, ReductionCost once,
                                int64_t memory_bytes_max);

}  // namespace muster::plan
