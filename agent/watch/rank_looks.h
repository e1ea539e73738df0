// A closer look at ranks, for what is said of them: what their GPUs do, which files they wait for,
// where their Python is, and where they are natively. A driver may be stuck, and so may the files
// of a program: each is asked on a lane of its own, for a limited time, and what is not to be had
// is missing in the report.
//
// Loop thread only.
#pragma once

#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/process/aside.h"
#include "agent/watch/gpu_look.h"
#include "asio/io_context.hpp"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {

// Each with what is before it.
enum class LookDepth { kPython, kGpus, kStacks };

struct RankLookTimes {
  absl::Duration gpus = absl::Seconds(2);  // each of these for all ranks together
  absl::Duration python = absl::Seconds(2);
  absl::Duration files = absl::Seconds(3);
  absl::Duration stacks = absl::Seconds(8);
};

class RankLooks {
 public:
  using Ranks = std::vector<hangs::RankReport>;

  explicit RankLooks(asio::io_context& loop, RankLookTimes times = {},
                     GpuLookOptions gpu_options = {});

  // Adds to `doing` what the GPUs do (gpu_look.h), fills in `python` of those that have none
  // (python_stack.h), adds to `doing` which file is waited for (file_wait.h), and then fills in
  // `frames` or `no_frames` of each, in their order. `then` is called once, from the loop, unless
  // this object goes before.
  void Take(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then);

 private:
  void TakePython(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then);
  void TakeFiles(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then);
  void TakeStacks(Ranks ranks, absl::AnyInvocable<void(Ranks)> then);

  const RankLookTimes times_;
  const GpuLookOptions gpu_options_;
  Aside gpus_;
  Aside files_;
};

}  // namespace muster::agent
