#include "worker_runtime/advice/cheapest_fit.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::advice {
namespace {

constexpr int64_t kMostRanks = 1024;

// One value of one thing that may change. `cost` orders the trials: about the percent of a step's
// time.
struct Change {
  std::string text;  // as options; empty: as it is
  double cost = 0;
};

struct Trial {
  double cost = 0;
  plan::PlanOptions options;
  JobShape shape;
  std::vector<std::string> texts;

  void Add(double more, std::string text) {
    cost += more;
    texts.push_back(std::move(text));
  }
};

// What shards less than `preset` comes earlier; presets beside this ladder stay as they are.
constexpr std::array<std::pair<const char*, double>, 4> kLadder = {
    {{"ddp", 0}, {"zero-1", 0.5}, {"zero-2", 1}, {"full-shard", 6}}};

std::vector<Trial> WithPlans(const Trial& from) {
  std::vector<Trial> trials = {from};
  const auto own = std::find_if(kLadder.begin(), kLadder.end(), [&](const auto& step) {
    return from.options.plan.preset == step.first;
  });
  if (own == kLadder.end() || from.shape.world_size == 1) return trials;
  for (auto step = own + 1; step != kLadder.end(); ++step) {
    const Plan preset = *PlanPreset(step->first);
    Trial trial = from;
    Plan& plan = trial.options.plan;
    plan.preset = preset.preset;
    plan.parameters = preset.parameters;
    plan.gradients = preset.gradients;
    plan.optimizer = preset.optimizer;
    plan.gathering = preset.gathering;
    trial.Add(step->second, absl::StrCat("--plan=", step->first));
    trials.push_back(std::move(trial));
  }
  return trials;
}

std::vector<Trial> WithRecompute(const Trial& from) {
  using Kind = Recompute::Kind;
  std::vector<Trial> trials = {from};
  for (const auto& [kind, cost] : {std::pair{Kind::kSelective, 2.0}, {Kind::kFull, 33.0}}) {
    if (kind <= from.options.plan.recompute.kind) continue;
    Trial trial = from;
    trial.options.plan.recompute.kind = kind;
    trial.Add(cost, absl::StrCat("--recompute=", ToString(kind)));
    trials.push_back(std::move(trial));
  }
  return trials;
}

std::vector<Trial> WithMicroBatches(const Trial& from) {
  std::vector<Trial> trials = {from};
  double cost = 4;
  Trial trial = from;
  while (trial.options.batch_size % 2 == 0) {
    trial.options.batch_size /= 2;
    trial.options.plan.accumulation *= 2;
    Trial smaller = trial;
    smaller.Add(cost, absl::StrCat("--batch_size=", trial.options.batch_size,
                                   " --accumulation=", trial.options.plan.accumulation));
    trials.push_back(std::move(smaller));
    cost += 4;
  }
  return trials;
}

// Other numbers come out, so it comes after what leaves them alone.
std::vector<Trial> WithTypes(const Trial& from) {
  std::vector<Trial> trials = {from};
  if (SizeOf(from.options.dtype) != SizeOf(DType::kF32)) return trials;
  Trial trial = from;
  trial.options.dtype = DType::kBf16;
  trial.Add(50, "--dtype=bf16");
  trials.push_back(std::move(trial));
  return trials;
}

template <typename Widen>
std::vector<Trial> Widened(const std::vector<Trial>& trials, Widen widen) {
  std::vector<Trial> all;
  for (const Trial& trial : trials) {
    for (Trial& wider : widen(trial)) all.push_back(std::move(wider));
  }
  return all;
}

// The largest number if it cannot be planned.
int64_t MemoryOf(const Trial& trial) {
  const absl::StatusOr<plan::PlanPageInput> job = PlanJob(trial.options, trial.shape);
  if (!job.ok()) return std::numeric_limits<int64_t>::max();
  return plan::MemoryOfRank(*job).total();
}

// The batch as it is, so that no equation forbids other sizes of the same product.
Trial Start(const plan::PlanOptions& options, const JobShape& shape) {
  Trial start = {.options = options, .shape = shape};
  start.options.plan.memory_bytes_max = 0;
  const absl::StatusOr<plan::PlanPageInput> job = PlanJob(options, shape);
  if (job.ok()) {
    start.options.batch_size = job->options.batch_size;
    start.options.plan.accumulation = job->options.plan.accumulation;
  }
  start.options.asked = {};
  return start;
}

}  // namespace

CheapestFit FindCheapestFit(const plan::PlanOptions& options, const JobShape& shape,
                            int64_t memory_bytes_max) {
  std::vector<Trial> trials = {Start(options, shape)};
  trials = Widened(trials, WithPlans);
  trials = Widened(trials, WithRecompute);
  trials = Widened(trials, WithMicroBatches);
  trials = Widened(trials, WithTypes);
  for (Trial& trial : trials) trial.options.plan.memory_bytes_max = memory_bytes_max;
  std::stable_sort(trials.begin(), trials.end(),
                   [](const Trial& a, const Trial& b) { return a.cost < b.cost; });
  CheapestFit least = {.memory_bytes = std::numeric_limits<int64_t>::max()};
  const auto fits = [&](const Trial& trial) {
    const int64_t bytes = MemoryOf(trial);
    least.memory_bytes = std::min(least.memory_bytes, bytes);
    return bytes <= memory_bytes_max;
  };
  // What takes least of each thing decides whether any of them can fit.
  Trial last = trials.back();
  if (fits(last)) {
    for (const Trial& trial : trials) {
      if (trial.texts.empty() || !fits(trial)) continue;
      return {absl::StrJoin(trial.texts, " "), MemoryOf(trial)};
    }
  }
  int64_t before = std::numeric_limits<int64_t>::max();
  while (last.shape.world_size * 2 <= kMostRanks) {
    last.shape.world_size *= 2;
    Trial more = WithPlans(last).back();
    const int64_t bytes = MemoryOf(more);
    least.memory_bytes = std::min(least.memory_bytes, bytes);
    if (bytes <= memory_bytes_max) {
      more.texts.push_back(absl::StrCat("--world_size=", more.shape.world_size));
      return {absl::StrJoin(more.texts, " "), bytes};
    }
    // What is left is not sharded, and more ranks take as much of it.
    if (static_cast<double>(bytes) > 0.99 * static_cast<double>(before)) break;
    before = bytes;
  }
  return least;
}

absl::Status CheckFits(const plan::PlanPageInput& job, const plan::PlanOptions& options,
                       const JobShape& shape, int64_t memory_bytes_max) {
  const int64_t needed = plan::MemoryOfRank(job).total();
  if (needed <= memory_bytes_max) return absl::OkStatus();
  const CheapestFit fit = FindCheapestFit(options, shape, memory_bytes_max);
  return absl::InvalidArgumentError(absl::StrCat(
      "a rank takes ", plan::ReadableBytes(needed), ", and its memory is ",
      plan::ReadableBytes(memory_bytes_max),
      fit.options.empty()
          ? absl::StrCat("; no plan, recomputation, micro-batch, type or number of ranks that was "
                         "tried fits, the least took ",
                         plan::ReadableBytes(fit.memory_bytes),
                         ": choose a smaller model or shorter sequences")
          : absl::StrCat("; the cheapest change that fits is ", fit.options, ", which takes ",
                         plan::ReadableBytes(fit.memory_bytes))));
}

}  // namespace muster::advice
