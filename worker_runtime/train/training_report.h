// What muster-train says before and after training: what is trained on what, and what it cost.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/decoder_config.h"
#include "muster/dtype.h"
#include "muster/engine.h"
#include "muster/plan.h"

namespace muster::train {

struct StartFacts {
  DecoderConfig model;
  Plan plan;  // of an engine: its stages are counted
  DType dtype = DType::kF32;
  int size = 1;  // ranks
  int64_t batch_size = 1;
  std::string data;              // TokenSource::Describe()
  std::string kernels;           // instruction set
  DType products = DType::kF32;  // the narrowest type that the device multiplies in
  std::string device_notes;      // Device::notes
  std::string backend;
  std::string exchange_notes;  // Communicator::notes
  std::string weights;         // the model's files that training begins with; empty: none
  std::string adapters;        // empty: there are none
  std::string resumed;         // the checkpoint; empty: none
};

// A few lines, each ending with \n.
std::string DescribeStart(const StartFacts& facts);

// How a process goes on in a later round of the job.
struct RoundFacts {
  int round = 0;            // of the job, from 0
  int size = 1;             // ranks
  int64_t step = 0;         // after which it goes on
  std::string whose_state;  // WhoseState; empty: that of no rank
  std::string no_state;     // why there is none, where whose_state is empty
  std::string resume;       // where a checkpoint was looked for; empty: nowhere
};

// One line, ending with \n.
std::string DescribeRound(const RoundFacts& facts);

// Totals of all steps of this process.
class TrainingTotals {
 public:
  void Add(const StepResult& result);

  int64_t num_steps() const { return num_steps_; }
  int64_t num_tokens() const { return num_tokens_; }
  double mean_loss() const;  // per token, of the steps that were not skipped
  const StepTimes& times() const { return times_; }

 private:
  int64_t num_steps_ = 0;
  int64_t num_tokens_ = 0;
  int64_t loss_tokens_ = 0;  // of the steps that were not skipped
  double loss_sum_ = 0;
  StepTimes times_;
};

struct EndFacts {
  TrainingTotals totals;
  absl::Duration elapsed;  // from the start of the first step to the end of the last
  EngineMemory memory;
  int64_t resident_bytes = 0;       // of this process; 0: not known
  int64_t wire_bytes_per_step = 0;  // sent by this rank; 0: not known
  int size = 1;
  int rounds = 1;              // of the job, that this process trained in
  int64_t repeated_steps = 0;  // that were lost between rounds, and are counted twice
};

// A few lines, each ending with \n; empty without a step. Times and memory are those of this rank.
std::string DescribeEnd(const EndFacts& facts);

}  // namespace muster::train
