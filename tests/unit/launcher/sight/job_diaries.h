// Diaries of a job of two nodes for tests: rank 3 fails in round 0, round 1 hangs for a while and
// ends well.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/sight/job_history.h"
#include "rendezvous/status/diary.h"

namespace muster::launcher {

constexpr int64_t kBeganMillis = 1700000000000;

// A line at `after` seconds of a diary that began at `began`.
inline std::string DiaryLine(status::DiaryEntry entry, double began, double after) {
  entry.after_seconds = after;
  entry.unix_millis = kBeganMillis + static_cast<int64_t>((began + after) * 1000);
  return ToJsonLine(entry);
}

inline std::string DiaryOf(const std::string& node, int first_rank, double began) {
  std::string diary;
  const auto add = [&](double at, status::DiaryEntry entry) {
    diary += DiaryLine(std::move(entry), began, at - began);
  };
  const auto turn = [&](double at, const char* spent) {
    add(at, {.what = status::kTurned, .spent = spent});
  };
  const auto round = [&](double at, int64_t number) {
    add(at, {.what = status::kRound,
             .round = number,
             .restart_count = static_cast<int>(number),
             .text = "all nodes have joined",
             .shape = {.num_nodes = 2, .first_rank = first_rank, .num_ranks = 2, .world_size = 4}});
  };
  add(began, {.what = status::kBegan, .run_id = "train", .node = node});
  turn(began, "forming");
  round(4, 0);
  turn(5, "running");
  add(5.5, {.what = status::kStarted, .round = 0, .starts = {.fresh = 2}});
  if (first_rank == 2) {
    add(15, {.what = status::kFailure,
             .round = 0,
             .rank = 3,
             .exit_code = 7,
             .text = "Traceback (most recent call last):\n  x\nValueError: bad <batch>"});
  }
  add(15, {.what = status::kSteps,
           .round = 0,
           .steps = {{.rank = first_rank, .step = 50}, {.rank = first_rank + 1, .step = 49}}});
  add(15, {.what = status::kSaid, .round = 0, .text = "restarting: rank 3 failed"});
  turn(15, "stopping");
  turn(16, "forming");
  round(17, 1);
  turn(18, "running");
  add(18.5 + first_rank, {.what = status::kStarted,
                          .round = 1,
                          .text = first_rank == 0 ? "" : "the warm process is not ready yet",
                          .starts = {.kept = first_rank == 0 ? 2 : 0,
                                     .forked = first_rank == 0 ? 0 : 1,
                                     .fresh = first_rank == 0 ? 0 : 1}});
  add(28, {.what = status::kSteps, .round = 1, .steps = {{.rank = first_rank, .step = 7}}});
  add(28, {.what = status::kNotice, .round = 1, .text = "rank 1 has not called all_reduce"});
  turn(28, "hung");
  add(32, {.what = status::kGoesOn, .round = 1, .text = "it goes on after all"});
  turn(32, "running");
  add(42, {.what = status::kSteps, .round = 1, .steps = {{.rank = first_rank, .step = 120}}});
  turn(42, "ending");
  add(42, {.what = status::kEnd, .exit_code = 0, .text = "all workers succeeded"});
  return diary;
}

inline JobHistory TwoNodes() {
  const IncidentSummary hang{.kind = "hang",
                             .file = "/logs/a/hang_1_1.json",
                             .node = "node1",
                             .round = 1,
                             .text = "rank 1 hangs",
                             .cause = "it waits for its data",
                             .action = "reported only"};
  return MakeHistory({{.diary = DiaryOf("node2", 2, 2), .incidents = {hang}},
                      {.diary = DiaryOf("node1", 0, 0), .incidents = {hang}}})
      .value();
}

}  // namespace muster::launcher
