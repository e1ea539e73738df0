#include "worker_runtime/plan/choose_reduction.h"

namespace muster::plan {
namespace {

bool Dominates(ReductionCost a, ReductionCost b) {
  return a.memory_bytes <= b.memory_bytes && a.sent_bytes <= b.sent_bytes;
}

ReductionChoice ChooseWithoutLimit(ReductionCost each, ReductionCost once) {
  if (Dominates(once, each)) {
    return {GradientReduction::kOnce, "it takes no more memory and sends no more"};
  }
  if (Dominates(each, once)) {
    return {GradientReduction::kEachMicroBatch, "it takes no more memory and sends no more"};
  }
  const double most = 1.5 * static_cast<double>(each.memory_bytes);
  if (static_cast<double>(once.memory_bytes) <= most) {
    return {GradientReduction::kOnce, "it sends less, for at most half as much memory again"};
  }
  return {GradientReduction::kEachMicroBatch,
          "once would take more than half as much memory again"};
}

}  // namespace

ReductionChoice ChooseReduction(ReductionCost each_micro_batch, ReductionCost once,
                                int64_t memory_bytes_max) {
  const auto fits = [&](ReductionCost cost) {
    return memory_bytes_max == 0 || cost.memory_bytes <= memory_bytes_max;
  };
  const ReductionChoice choice = ChooseWithoutLimit(each_micro_batch, once);
  if (choice.chosen == GradientReduction::kOnce && !fits(once) && fits(each_micro_batch)) {
    return {GradientReduction::kEachMicroBatch, "once would not fit the memory"};
  }
  if (choice.chosen == GradientReduction::kEachMicroBatch && !fits(each_micro_batch) &&
      fits(once)) {
    return {GradientReduction::kOnce, "reducing with each micro-batch would not fit the memory"};
  }
  return choice;
}

}  // namespace muster::plan
