// A proven schedule as a picture: ranks from top to bottom, time from left to right.
//
// Threads: pure.
#pragma once

#include <string>

#include "worker_runtime/plan/schedules/prove_schedule.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

// One line per rank, one cell per unit of time; F3 is a forward pass over micro-batch 3, and where
// ranks have several stages F3b one of the second of them. A pass of several units is drawn out
// with =, a rank that waits has a dot. Pictures of more than kMostCells cells end early and say so.
//
//   rank 0  F0  F1  .   B0= F2  B1= ...
inline constexpr int64_t kMostCells = 160;
std::string DrawText(const Schedule& schedule, const ScheduleProof& proof);

// The same as an SVG image.
std::string DrawSvg(const Schedule& schedule, const ScheduleProof& proof);

}  // namespace muster::plan
