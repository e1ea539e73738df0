// What muster-train takes along from one round of its job to the next, and when it asks for the
// next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "muster/communicator.h"
#include "muster/data.h"
#include "muster/device.h"
#include "muster/engine.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/train/loss_curve.h"
#include "worker_runtime/train/training_data.h"
#include "worker_runtime/train/training_report.h"

namespace muster::train {

// What outlives a round in this process.
struct TrainingSoFar {
  int rounds = 0;  // that this process has begun to train in
  TrainingData data;
  std::unique_ptr<Device> device;  // null: not opened yet, or the host
  double operations_peak = 0;      // of it, a second; 0: not known
  std::string unit_costs;          // that were measured (ToString); empty: none were
  EngineSnapshot state;            // empty until a round has been left
  std::string no_state;            // why it is empty, for people
  // The world of the round that was left last, which is at its end; on `device`.
  std::unique_ptr<Communicator> former_world;

  // What all rounds came to, for people.
  std::optional<MonoTime> begin;  // of the first step
  TrainingTotals totals;
  LossHistory history;
  int64_t last_step = 0;  // that this process has made
  int64_t repeated_steps = 0;
  int64_t bytes_sent_by_steps = 0;  // by this rank
  int64_t saved_step = -1;

  // The next step is that behind `step`.
  void GoOnAfter(int64_t step);
};

enum class AfterFailure {
  kEnd,          // with the failure
  kEndBySignal,  // that was received before it
  kAskForRound,  // Runtime::NextRound
};

// `survives`: --survive; `signal` was received in the round, 0: none. Where a
// checkpoint is refused for good (kCancelled), another round has begun. Threads: pure.
AfterFailure DecideAfterFailure(bool survives, const absl::Status& failure, int signal);

// Which one people should read: the failure that ended a round, or the answer that there is no
// other. Threads: pure.
const absl::Status& FailureToSay(const absl::Status& failure, const absl::Status& no_round);

}  // namespace muster::train
