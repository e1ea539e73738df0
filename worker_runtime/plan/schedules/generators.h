// Schedules by the names that people know them by, one file for each, and what a plan has as its
// schedule: one of those names, or a schedule itself as FormatSchedule writes it.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

// A schedule's own text says how many stages each rank has, which may differ.
inline constexpr int kStagesOfText = 0;

struct ScheduleShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int64_t micro_batches = 1;
};

// Each takes any shape of at least 1, and refuses what it has no order for.
//
// Errors: kInvalidArgument: says what is wrong and the nearest shape that it takes.

// All forward passes, then all backward passes; one stage per rank.
// Source: Huang et al., "GPipe", 2019, section 2.3
absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape);

// Rank r of p goes forward min(m, p - r) times, then backward and forward in turn; one stage per
// rank.
// Source: Narayanan et al., "Efficient Large-Scale Language Model Training", 2021, section 2.2.1
absl::StatusOr<Schedule> OneForwardOneBackward(const ScheduleShape& shape);

// The same over several stages per rank, rank r having the stages r, r + p, r + 2p, ...
// Micro-batches go in rounds of at least p, or all in one, and each stage of a rank takes a whole
// round before the next does: rounds = max(1, m / p) must divide m.
// Source: the same, section 2.2.2; rounds of more than p as torch.distributed.pipelining has them
absl::StatusOr<Schedule> Interleaved(const ScheduleShape& shape);

// 1F1B whose backward pass is two: gradients of weights come r micro-batches later on rank r, where
// it would wait; one stage per rank, and the memory of the first rank of 1F1B on all.
// Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2.1 (ZB-H1)
absl::StatusOr<Schedule> ZeroBubbleH1(const ScheduleShape& shape);

// Two stages per rank, in a V: rank r has the stages r and 2p - 1 - r, so that the last stage lies
// beside the first. No rank waits where the three kinds of passes take alike long and there are
// 2p - 1 micro-batches.
// Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 6 (ZB-V)
absl::StatusOr<Schedule> ZeroBubbleV(const ScheduleShape& shape);

// The same V, in whose middle each rank goes forward on one way and backward on the other, over
// neighbouring micro-batches. It is made for passes that overlap; here they are computed one after
// the other. One stage's micro-batch more is live than with ZB-V.
// Source: arXiv 2412.19437, 2024, section 3.2.1, folded into a V as
// torch.distributed.pipelining has it (ScheduleDualPipeV)
absl::StatusOr<Schedule> DualPipeV(const ScheduleShape& shape);

// "gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev".
std::vector<std::string> ScheduleNames();

// Whether a plan's schedule is one itself, and no name.
bool IsScheduleText(absl::string_view schedule);
// The name, or what a schedule calls itself.
std::string NameOfSchedule(absl::string_view schedule);

// Whether somebody who says which schedule means a file: it has a / or a . in it.
bool IsScheduleFile(absl::string_view asked);

// Stages per rank that a plan's schedule takes where nobody says how many.
int UsualStagesPerRank(absl::string_view schedule);

// The schedule of one of those names, in which - and _ and upper and lower case are alike, or the
// one whose text this is.
//
// Errors: kInvalidArgument: no such name (with the nearest one), more than kMostPasses, or as the
// generator refuses; a schedule of another shape, or as ParseSchedule and ProveSchedule refuse.
absl::StatusOr<Schedule> MakeSchedule(absl::string_view schedule, const ScheduleShape& shape);

// What a generator with one stage per rank refuses. Errors: as above.
absl::Status CheckOneStagePerRank(absl::string_view name, const ScheduleShape& shape);

}  // namespace muster::plan
