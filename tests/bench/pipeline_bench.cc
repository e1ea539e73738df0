// How near the idle time of a pipeline comes to what ProveSchedule says of its schedule.
//
//   pipeline_bench [--steps N] [--json FILE]
//
// Four ranks, threads of one process, train a model whose passes only sleep, each for a known time,
// so that neither the processor nor the network decides: what a step takes beyond its schedule is
// the engine's. To reach: within 5 % of the proven step. JSON has the time of every step.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "muster/data.h"
#include "muster/engine.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/tape.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/prove_schedule.h"

namespace muster {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kMicroBatches = 8;
// What a rank's passes over one micro-batch take, in milliseconds; two stages share each evenly.
const plan::PassCosts kPassesOfRank[] = {
    {.forward = 20, .input_gradient = 20, .weight_gradient = 20},
    {.forward = 20, .input_gradient = 30, .weight_gradient = 10},
};

struct Case {
  std::string schedule;
  int stages_per_rank = 1;
  plan::PassCosts of_rank;

  // What the passes of one stage take, in microseconds.
  plan::PassCosts of_stage() const {
    const auto share = [this](int64_t whole) { return 1000 * whole / stages_per_rank; };
    return {share(of_rank.forward), share(of_rank.input_gradient), share(of_rank.weight_gradient)};
  }
  // Milliseconds of a step in which a rank computes.
  double busy() const {
    return static_cast<double>(
        kMicroBatches * (of_rank.forward + of_rank.input_gradient + of_rank.weight_gradient));
  }
};

// Each unit is a stage and has one parameter of one element.
class SleepingModel {
 public:
  SleepingModel(ParameterStore& store, const Case& of) : costs_(of.of_stage()) {
    for (int u = 0; u < kRanks * of.stages_per_rank; ++u) {
      const std::string name = absl::StrCat("unit", u);
      store.BeginUnit(name);
      weights_.push_back(&store.Declare({name, {1}, Initializer::Constant(1)}));
    }
  }

  // Makes units take their time from now on; until then the model only shows the engine what it
  // uses.
  void BeginSleeping() { sleeps_ = true; }

  StageOutput Forward(Tape& tape, UnitRange units, Activation x) const {
    for (int u = units.first; u < units.end; ++u) x = ForwardUnit(tape, *weights_[u], x.slot);
    if (units.end < static_cast<int>(weights_.size())) return {.passed_on = {x}};
    return {.loss = {.sum = 1, .num_tokens = 1, .output = x}};
  }

 private:
  Activation ForwardUnit(Tape& tape, Parameter& weight, int input) const {
    const Tensor output = tape.pool().Allocate(DType::kF32, {1});
    tape.operations(DType::kF32).copy(tape.queue(), tape.Use(weight), output);
    Sleep(costs_.forward);
    return tape.Record(
        output, {&weight},
        [this, input](Tape& on, const Tensor& dy) {
          Sleep(costs_.input_gradient);
          on.AddGradient(input, dy);
        },
        [this, &weight](Tape& on, const Tensor& dy) {
          Sleep(costs_.weight_gradient);
          const auto [gradient, accumulate] = weight.BeginGradient();
          const Operations& operations = on.operations(DType::kF32);
          if (accumulate) return operations.add(on.queue(), gradient, dy, gradient);
          operations.copy(on.queue(), dy, gradient);
        });
  }

  void Sleep(int64_t microseconds) const {
    if (sleeps_) absl::SleepFor(absl::Microseconds(microseconds));
  }

  const plan::PassCosts costs_;
  std::vector<Parameter*> weights_;
  bool sleeps_ = false;
};

class NoText final : public TokenSource {
 public:
  int64_t num_tokens() const override { return 1000; }
  int64_t vocabulary() const override { return 2; }
  std::string Describe() const override { return "no text"; }
  absl::Status Read(int64_t, absl::Span<int32_t> out) const override {
    std::fill(out.begin(), out.end(), 0);
    return absl::OkStatus();
  }
};

using Milliseconds = std::vector<double>;  // [steps]

absl::StatusOr<Milliseconds> TrainRank(Communicator& world, const Case& of, int steps) {
  constexpr Engine::BatchSize kSize = {.batch = 1, .sequence = 1};
  ParameterStore store;
  SleepingModel model(store, of);
  Plan plan;
  plan.stages = kRanks;
  plan.schedule = of.schedule;
  plan.stages_per_rank = of.stages_per_rank;
  plan.accumulation = kMicroBatches;
  const UnitModel units = [&](Tape& tape, UnitRange range, const ModelInput&,
                              absl::Span<const Activation> received) {
    return model.Forward(tape, range, received.empty() ? Activation() : received[0]);
  };
  MUSTER_ASSIGN_OR_RETURN(const auto engine, Engine::Create(world, store, plan, units, kSize));
  const NoText text;
  MUSTER_ASSIGN_OR_RETURN(const auto reader, engine->Read(text, kSize));
  model.BeginSleeping();
  MUSTER_RETURN_IF_ERROR(engine->Step(*reader).status());  // the first one takes memory
  Milliseconds times;
  MonoTime begin = MonoNow();
  for (int i = 0; i < steps; ++i) {
    MUSTER_RETURN_IF_ERROR(engine->Step(*reader).status());
    const MonoTime end = MonoNow();
    times.push_back(absl::ToDoubleMilliseconds(end - begin));
    begin = end;
  }
  return times;
}

// Returns the times of rank 0: all ranks end a step together, by the norm of the gradient.
absl::StatusOr<Milliseconds> Train(const Case& of, int steps) {
  const auto communicators = comm::MakeLoopbackCommunicators({.size = kRanks});
  std::vector<absl::StatusOr<Milliseconds>> times(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { times[rank] = TrainRank(*communicators[rank], of, steps); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_rank : times) MUSTER_RETURN_IF_ERROR(of_rank.status());
  return times[0];
}

absl::StatusOr<plan::ScheduleProof> Prove(const Case& of) {
  MUSTER_ASSIGN_OR_RETURN(const plan::Schedule schedule,
                          plan::MakeSchedule(of.schedule, {.ranks = kRanks,
                                                           .stages_per_rank = of.stages_per_rank,
                                                           .micro_batches = kMicroBatches}));
  return plan::ProveSchedule(schedule, of.of_stage());
}

double MedianOf(Milliseconds times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

std::string PassesText(const plan::PassCosts& costs) {
  return absl::StrCat("F ", costs.forward, ", I ", costs.input_gradient, " and W ",
                      costs.weight_gradient, " ms");
}

// Prints the row of `of`, and returns it for JSON.
absl::StatusOr<std::string> Compare(const Case& of, int steps) {
  MUSTER_ASSIGN_OR_RETURN(const plan::ScheduleProof proof, Prove(of));
  MUSTER_ASSIGN_OR_RETURN(const Milliseconds times, Train(of, steps));
  const double proven = static_cast<double>(proof.end) / 1000;
  const double measured = MedianOf(times);
  const plan::Fraction idle = proof.idle_share();
  const double proven_idle =
      static_cast<double>(idle.numerator) / static_cast<double>(idle.denominator);
  const double measured_idle = 1 - of.busy() / measured;
  absl::PrintF("  %-13s %6d %9.1f ms %9.1f ms %+8.1f %% %9.1f %% %9.1f %%\n", of.schedule,
               of.stages_per_rank, proven, measured, 100 * (measured / proven - 1),
               100 * proven_idle, 100 * measured_idle);
  std::fflush(stdout);
  return absl::StrFormat(
      R"( {"schedule": "%s", "stages_per_rank": %d, "passes_ms": [%d, %d, %d], )"
      R"("proven_ms": %g, "proven_idle": %g, "measured_idle": %g, "steps_ms": [%s]})",
      of.schedule, of.stages_per_rank, of.of_rank.forward, of.of_rank.input_gradient,
      of.of_rank.weight_gradient, proven, proven_idle, measured_idle, absl::StrJoin(times, ", "));
}

absl::Status Run(int steps, const std::string& json) {
  double load = 0;
  getloadavg(&load, 1);
  absl::PrintF(
      "pipelines of stages that sleep: %d ranks, %d micro-batches, medians of %d steps; load "
      "average %.1f\n",
      kRanks, kMicroBatches, steps, load);
  std::vector<std::string> rows;
  for (const plan::PassCosts& of_rank : kPassesOfRank) {
    absl::PrintF("passes of a rank over one micro-batch take %s\n", PassesText(of_rank));
    absl::PrintF("  %-13s %6s %12s %12s %10s %11s %11s\n", "", "stages", "step,", "step,", "",
                 "idle,", "idle,");
    absl::PrintF("  %-13s %6s %12s %12s %10s %11s %11s\n", "schedule", "a rank", "proven",
                 "measured", "off by", "proven", "measured");
    for (const std::string& name : plan::ScheduleNames()) {
      MUSTER_ASSIGN_OR_RETURN(std::string row,
                              Compare({name, plan::UsualStagesPerRank(name), of_rank}, steps));
      rows.push_back(std::move(row));
    }
  }
  if (json.empty()) return absl::OkStatus();
  std::ofstream file(json);
  file << "[\n" << absl::StrJoin(rows, ",\n") << "\n]\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", json));
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  int steps = 5;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--steps") steps = std::atoi(argv[i + 1]);
    if (flag == "--json") json = argv[i + 1];
  }
  if (argc % 2 == 0 || steps < 1) {
    std::fprintf(stderr, "usage: pipeline_bench [--steps N] [--json FILE]\n");
    return 2;
  }
  const absl::Status status = muster::Run(steps, json);
  if (!status.ok()) std::fprintf(stderr, "pipeline_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
