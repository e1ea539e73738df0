// Rank 1 of a job hangs, or seems to, in one of several ways while the others call collectives:
//
//   hanging_rank skips|sleeps|spins|stops|orders|save|first_step|computes|long_save|long_first_step
//   hanging_rank end
//   hanging_rank slow
//   hanging_rank learns
//
// The last five of the first line are no hangs: the job ends well after them. So it does in a
// second attempt. With `end` the others wait for rank 1, which takes long behind its last step.
// With `slow` rank 1 takes three times as long as the others for its part of each step, for ever.
// With `learns` rank 1 once takes long, says so, and steps on for ever; in the second attempt it
// takes twice as long and more, and the job ends well.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "muster/communicator.h"
#include "muster/runtime.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr int kGoodSteps = 5;
constexpr int64_t kCount = 1024;

// What looks like a hang for longer than a notice takes to come.
constexpr absl::Duration kLong = absl::Seconds(13);
constexpr absl::Duration kLongSave = absl::Seconds(25);
constexpr absl::Duration kLongFirstStep = absl::Seconds(20);
constexpr absl::Duration kLongEnd = absl::Seconds(20);
constexpr absl::Duration kLonger = absl::Seconds(30);

// Seen by their names in the report.
[[noreturn, gnu::noinline]] void SleepInTheDataLoader() {
  for (;;) absl::SleepFor(absl::Hours(1));
}

[[noreturn, gnu::noinline]] void SpinForEver() {
  volatile int64_t turns = 0;
  for (;;) turns = turns + 1;
}

absl::Status Step(Runtime& runtime, Communicator& world, int step) {
  std::vector<float> ones(kCount, 1);
  runtime.SetProgress(step, Phase::kForward);
  // Slowly enough to be seen.
  if (runtime.restart_count() > 0) absl::SleepFor(absl::Milliseconds(250));
  runtime.SetProgress(step, Phase::kReduce);
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(ones)).Wait());
  runtime.SetProgress(step + 1, Phase::kIdle);
  return absl::OkStatus();
}

// Two groups, used by the ranks in opposite orders.
absl::Status CallInOppositeOrders(Runtime& runtime, Communicator& world) {
  MUSTER_ASSIGN_OR_RETURN(const auto a, world.Split(0, world.rank(), "a"));
  MUSTER_ASSIGN_OR_RETURN(const auto b, world.Split(0, world.rank(), "b"));
  std::vector<float> ones(kCount, 1);
  const bool reversed = runtime.rank() == 1;
  MUSTER_RETURN_IF_ERROR((reversed ? b : a)->AllReduce(BufferOf(ones)).Wait());
  return (reversed ? a : b)->AllReduce(BufferOf(ones)).Wait();
}

absl::Status Misbehave(Runtime& runtime, Communicator& world, const std::string& how) {
  if (how == "orders") return CallInOppositeOrders(runtime, world);
  if (runtime.rank() != 1) return absl::OkStatus();
  if (how == "sleeps") SleepInTheDataLoader();
  if (how == "spins") SpinForEver();
  if (how == "stops") raise(SIGSTOP);
  if (how == "skips") {
    return runtime.store().Wait("a key that nobody sets", MonoNow() + absl::Hours(1)).status();
  }
  if (how == "save" || how == "long_save") {
    runtime.SetProgress(kGoodSteps, Phase::kSave);
    absl::SleepFor(how == "save" ? kLong : kLongSave);
  }
  if (how == "computes") absl::SleepFor(kLong);
  return absl::OkStatus();
}

[[noreturn]] void EndBadly(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

[[noreturn]] void StepSlowly(Runtime& runtime, Communicator& world) {
  for (int step = 0;; ++step) {
    absl::SleepFor(absl::Milliseconds(runtime.rank() == 1 ? 60 : 20));
    const absl::Status status = Step(runtime, world, step);
    if (!status.ok()) EndBadly(status);
    if (step == kGoodSteps && runtime.rank() == 0) {
      std::printf("stepping\n");
      std::fflush(stdout);
    }
  }
}

absl::Status TakeLonger(Runtime& runtime, Communicator& world) {
  const bool is_first = runtime.restart_count() == 0;
  for (int step = 0; is_first || step < 2 * kGoodSteps; ++step) {
    if (step == kGoodSteps && runtime.rank() == 1) absl::SleepFor(is_first ? kLong : kLonger);
    if (step > kGoodSteps) absl::SleepFor(absl::Milliseconds(100));
    MUSTER_RETURN_IF_ERROR(Step(runtime, world, step));
    if (step == 2 * kGoodSteps && runtime.rank() == 0) {
      std::printf("it went on\n");
      std::fflush(stdout);
    }
  }
  return runtime.Finish(2 * kGoodSteps);
}

absl::Status EndSlowly(Runtime& runtime, Communicator& world) {
  if (runtime.rank() == 1) {
    runtime.SetProgress(2 * kGoodSteps, Phase::kEnd);
    absl::SleepFor(kLongEnd);
  }
  return world.Barrier().Wait();
}

absl::Status Run(const std::string& how) {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world"));
  if (how == "slow") StepSlowly(*runtime, *world);
  if (how == "learns") return TakeLonger(*runtime, *world);
  const bool is_long = how == "long_first_step";
  if ((how == "first_step" || is_long) && runtime->rank() == 1) {
    runtime->SetProgress(0, Phase::kForward);
    absl::SleepFor(is_long ? kLongFirstStep : kLong);
  }
  for (int step = 0; step < 2 * kGoodSteps; ++step) {
    if (step == kGoodSteps && runtime->restart_count() == 0) {
      MUSTER_RETURN_IF_ERROR(Misbehave(*runtime, *world, how));
    }
    MUSTER_RETURN_IF_ERROR(Step(*runtime, *world, step));
  }
  if (how == "end") MUSTER_RETURN_IF_ERROR(EndSlowly(*runtime, *world));
  return runtime->Finish(2 * kGoodSteps);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const absl::Status status = muster::Run(argc > 1 ? argv[1] : "");
  if (!status.ok()) muster::EndBadly(status);
  return 0;
}
