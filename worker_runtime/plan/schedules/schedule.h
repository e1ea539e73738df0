// The order in which the ranks of a pipeline compute, as a value: made by a generator
// (generators.h) or read from a file, proven before anything runs (prove_schedule.h).
//
//   schedule 1f1b
//   micro_batches 3
//   stages_on_ranks 0 1
//   rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
//   rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
//
// F, B, I and W are passes of a stage over a micro-batch (PassKind); B1.2 is the backward pass of
// stage 1 over micro-batch 2. A line that begins with # is a remark.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::plan {

enum class PassKind : uint8_t {
  kForward,
  kBackward,        // both of the next two, at once
  kInputGradient,   // the part of a backward pass that the stage before waits for
  kWeightGradient,  // the part that nothing but the update waits for
};
inline bool WritesGradients(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kWeightGradient;
}
// F, B, I or W.
char LetterOf(PassKind kind);

struct StagePass {
  PassKind kind = PassKind::kForward;
  int stage = 0;
  int64_t micro_batch = 0;
  friend bool operator==(const StagePass&, const StagePass&) = default;
};
// "F0.3"
std::string ToString(const StagePass& pass);

struct Schedule {
  std::string name;
  int64_t micro_batches = 1;
  std::vector<int> rank_of_stage;              // [stages]
  std::vector<std::vector<StagePass>> passes;  // [ranks], each in the order of the rank

  int num_ranks() const { return static_cast<int>(passes.size()); }
  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  // The most of any rank.
  int stages_per_rank() const;
  int64_t num_passes() const;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// Ranks, stages and micro-batches are at least 1; a schedule has at most so many passes.
inline constexpr int64_t kMostPasses = int64_t{1} << 18;

// The text above; ParseSchedule(FormatSchedule(s)) == s.
std::string FormatSchedule(const Schedule& schedule);

// Reads it. That it ends is ProveSchedule's to show.
//
// Errors: kInvalidArgument: names the line, what stands there and what was expected.
absl::StatusOr<Schedule> ParseSchedule(absl::string_view text);

}  // namespace muster::plan
