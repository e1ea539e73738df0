// What this rank did in its first steps, as a time line for ui.perfetto.dev: lanes of the program
// that the plan became. `muster report --trace` puts those of all ranks beside the job's life.
//
// Threads: compatible.
// Source: "Trace Event Format" (the JSON form: traceEvents with ph X and M; times in microseconds).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "muster/engine.h"

namespace muster::train {

// Time lines of the first steps of each round.
struct TraceOptions {
  std::string directory;  // empty: none
  int64_t steps = 10;
};

class StepTrace {
 public:
  // The time line of rank `rank` in an attempt with `restart_count` restarts behind it.
  StepTrace(int rank, int restart_count) : rank_(rank), restart_count_(restart_count) {}

  void Add(const TimedAction& action) { actions_.push_back(action); }
  bool empty() const { return actions_.empty(); }

  // "steps_<rank>_<restart count>.trace.json". Times in it count from the first action, whose
  // instant is `otherData.began_unix_micros`.
  std::string FileName() const;
  std::string ToJson() const;
  // Writes it to `directory`, which is there, whole or not at all.
  //
  // Errors: kUnavailable: the file system says no.
  absl::Status Write(const std::string& directory) const;

 private:
  const int rank_;
  const int restart_count_;
  std::vector<TimedAction> actions_;
};

}  // namespace muster::train
