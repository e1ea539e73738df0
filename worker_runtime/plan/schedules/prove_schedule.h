// Whether the ranks of a schedule come to its end together, and what it costs, in whole numbers.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/plan/schedules/pass_order.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

// A fraction in lowest terms.
struct Fraction {
  int64_t numerator = 0;
  int64_t denominator = 1;
  friend bool operator==(const Fraction&, const Fraction&) = default;
};
// `denominator` is above 0.
Fraction FractionOf(int64_t numerator, int64_t denominator);
// "3/7"; "2" where it is a whole number.
std::string ToString(const Fraction& fraction);

// How long the passes of a stage over a micro-batch take, each at least 1, in one unit.
struct PassCosts {
  int64_t forward = 1;
  int64_t input_gradient = 1;
  int64_t weight_gradient = 1;
  // [stages]: how often these times; empty: once in every stage.
  std::vector<int64_t> times_of_stage;

  int64_t Of(PassKind kind) const;
  int64_t Of(const StagePass& pass) const;
};

struct PlacedPass {
  StagePass pass;
  int64_t begin = 0;
  int64_t end = 0;
};

struct RankTimes {
  int64_t busy = 0;
  int64_t begin = 0;      // of its first pass
  int64_t end = 0;        // of its last pass
  int64_t peak_live = 0;  // stages and micro-batches whose activations it keeps at once, at most
  int stages = 0;
};

// What a schedule takes where transfers take no time.
struct ScheduleProof {
  int64_t end = 0;  // of the last pass
  std::vector<RankTimes> ranks;
  std::vector<std::vector<PlacedPass>> passes;  // [ranks], in their order
  int64_t num_transfers = 0;

  // The most that a rank waits between its first and its last pass.
  int64_t bubble() const;
  // The part of all ranks' time, from the first pass of any to the last of any, in which they wait.
  Fraction idle_share() const;
  // The most that a rank keeps, in micro-batches: a stage of v counts one v-th.
  Fraction peak_micro_batches() const;
};

// Shows of `schedule` that
//
//   S1  each stage goes over each micro-batch forward once and backward once, in one pass or in
//       both parts, on its own rank;
//   S2  a stage makes the gradients of its weights in the order of micro-batches, so that sums
//       have the same bits under every schedule;
//   S3  what a pass waits for from another rank is received before it, and sent;
//   S4  the k-th transfer from one rank to another is the same on both sides;
//   S5  every pass is done in the end: nobody waits for what never comes.
//
// Errors: kInvalidArgument: the rank, the pass, what does not hold, and, where one is found, the
// smallest change that mends it.
absl::StatusOr<ScheduleProof> ProveSchedule(const Schedule& schedule, const PassCosts& costs);

// S1 and S2.
absl::Status CheckPasses(const Schedule& schedule);

// S3 to S5 of an order of `schedule`, of which S1 holds. Nothing is tied.
//
// order: [ranks], as OrderOfRanks gives it.
absl::StatusOr<ScheduleProof> ProveOrder(const Schedule& schedule,
                                         absl::Span<const std::vector<PassOfRank>> order,
                                         const PassCosts& costs);

}  // namespace muster::plan
