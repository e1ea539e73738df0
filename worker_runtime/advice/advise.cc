#include "worker_runtime/advice/advise.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker_runtime/advice/cheapest_fit.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::advice {
namespace {

constexpr size_t kRunnersUp = 6;
constexpr int64_t kMostStages = 64;

constexpr std::array<const char*, 6> kPresets = {"ddp",           "zero-1",     "zero-2",
                                                 "shard-grad-op", "full-shard", "zero-3"};
// These presets are tried where there are several nodes.
constexpr std::array<const char*, 4> kPresetsOfNodes = {"hybrid-shard", "hybrid-shard-zero2",
                                                        "mics", "zero-3-hpz"};
// These are tried beside tensor ranks: others differ from one of them by little there.
constexpr std::array<const char*, 3> kPresetsOfTensorRanks = {"ddp", "zero-1", "zero-3"};

// A rung of the ladder takes at most this share of the memory of the one above.
constexpr double kRungShare = 0.9;

struct Candidate {
  plan::PlanOptions options;
  int64_t memory_bytes = 0;
  int64_t sent_bytes = 0;
  StepTime time;
};

int64_t SequencesOf(const AdviceInput& input) {
  const plan::PlanOptions& options = input.options;
  if (options.asked.train != 0) return options.asked.train;
  return options.batch_size * options.plan.accumulation * input.shape.world_size;
}

void TakePlacements(const Plan& preset, Plan& plan) {
  plan.preset = preset.preset;
  plan.parameters = preset.parameters;
  plan.gradients = preset.gradients;
  plan.optimizer = preset.optimizer;
  plan.gathering = preset.gathering;
  plan.shard_ranks = preset.shard_ranks;
}

// Powers of two that divide `sequences`, as micro-batches of a replica.
std::vector<int64_t> MicroBatches(int64_t sequences) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min<int64_t>(sequences, 64); size *= 2) {
    if (sequences % size == 0) sizes.push_back(size);
  }
  return sizes;
}

// Whether so many tensor ranks can share the layers of a model, on one node.
bool MayShare(const DecoderConfig& model, int64_t tensor_ranks, int64_t ranks_of_node) {
  return tensor_ranks <= ranks_of_node && ranks_of_node % tensor_ranks == 0 &&
         model.heads % tensor_ranks == 0 && model.key_heads() % tensor_ranks == 0 &&
         model.mlp_width() % tensor_ranks == 0;
}

// How the ranks of a job lie.
struct Spread {
  int64_t stages = 1;
  int64_t tensor_ranks = 1;
  int64_t replicas = 1;
};

class Search {
 public:
  explicit Search(const AdviceInput& input) : input_(input) {}

  std::vector<Candidate> Run() {
    const DecoderConfig& model = input_.options.model;
    for (int64_t stages = 1; stages <= kMostStages; stages *= 2) {
      if (input_.shape.world_size % stages != 0 || stages > model.layers) break;
      for (int64_t tensor = 1; MayShare(model, tensor, OfNode()); tensor *= 2) {
        if (input_.shape.world_size % (stages * tensor) != 0) break;
        TrySpread({stages, tensor, input_.shape.world_size / stages / tensor});
      }
    }
    return ByTime(std::move(found_));
  }

  // What Run() found too large: the quickest, then the quickest of those that take less, and so on.
  std::vector<Candidate> Ladder() {
    std::vector<Candidate> rungs;
    for (Candidate& candidate : ByTime(std::move(too_large_))) {
      const auto bytes = static_cast<double>(candidate.memory_bytes);
      if (rungs.empty() || bytes <= kRungShare * static_cast<double>(rungs.back().memory_bytes)) {
        rungs.push_back(std::move(candidate));
      }
    }
    return rungs;
  }

 private:
  void TrySpread(const Spread& spread) {
    if (SequencesOf(input_) % spread.replicas != 0) return;
    if (spread.tensor_ranks > 1) {
      for (const char* preset : kPresetsOfTensorRanks) TryPreset(spread, preset);
      return;
    }
    for (const char* preset : kPresets) TryPreset(spread, preset);
    if (input_.shape.world_size <= OfNode()) return;
    for (const char* preset : kPresetsOfNodes) TryPreset(spread, preset);
  }

  void TryPreset(const Spread& spread, const std::string& preset) {
    const auto& [stages, tensor_ranks, replicas] = spread;
    const bool is_plain = preset == "ddp";
    if (replicas == 1 && !is_plain) return;  // there is nobody to share with
    for (const auto& [dtype, rates] :
         {std::pair{DType::kBf16, &input_.narrow}, {DType::kF32, &input_.wide}}) {
      if (rates->flops <= 0) continue;
      for (const int64_t micro : MicroBatches(SequencesOf(input_) / replicas)) {
        for (const auto kind :
             {Recompute::Kind::kNone, Recompute::Kind::kSelective, Recompute::Kind::kFull}) {
          plan::PlanOptions options = input_.options;
          TakePlacements(*PlanPreset(preset), options.plan);
          options.asked = {};
          options.dtype = dtype;
          options.batch_size = micro;
          options.plan.accumulation = SequencesOf(input_) / replicas / micro;
          options.plan.stages = stages;
          options.plan.tensor_ranks = tensor_ranks;
          options.plan.recompute.kind = kind;
          options.plan.memory_bytes_max = input_.memory_bytes_max;
          Try(std::move(options), *rates);
        }
      }
    }
  }

  int64_t OfNode() const {
    return input_.shape.ranks_of_node == 0 ? input_.shape.world_size : input_.shape.ranks_of_node;
  }

  void Try(plan::PlanOptions options, const RankRates& rates) {
    const absl::StatusOr<plan::PlanPageInput> job = PlanJob(std::move(options), input_.shape);
    if (!job.ok()) return;
    const plan::RankMemory memory = plan::MemoryOfRank(*job);
    const bool fits = memory.total() <= input_.memory_bytes_max;
    (fits ? found_ : too_large_)
        .push_back({.options = job->options,
                    .memory_bytes = memory.total(),
                    .sent_bytes = memory.figures.sent_total(),
                    .time = PredictStepTime(*job, memory, rates)});
  }

  static std::vector<Candidate> ByTime(std::vector<Candidate> candidates) {
    std::stable_sort(
        candidates.begin(), candidates.end(),
        [](const Candidate& a, const Candidate& b) { return a.time.total() < b.time.total(); });
    return candidates;
  }

  const AdviceInput& input_;
  std::vector<Candidate> found_, too_large_;
};

std::string OptionsOf(const Candidate& candidate) {
  const plan::PlanOptions& options = candidate.options;
  std::string text = absl::StrCat(
      "--plan=", options.plan.preset, " --dtype=", ToString(options.dtype),
      " --batch_size=", options.batch_size, " --accumulation=", options.plan.accumulation);
  if (options.plan.stages > 1) absl::StrAppend(&text, " --stages=", options.plan.stages);
  if (options.plan.tensor_ranks > 1) {
    absl::StrAppend(&text, " --mesh=tp=", options.plan.tensor_ranks);
  }
  if (options.plan.recompute.kind != Recompute::Kind::kNone) {
    absl::StrAppend(&text, " --recompute=", ToString(options.plan.recompute.kind));
  }
  return text;
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); }

std::string Line(const Candidate& candidate) {
  return absl::StrFormat("%10s per step, %3.0f %% scaling, %9s of memory, %9s sent   %s\n",
                         Milliseconds(candidate.time.total()), 100 * candidate.time.efficiency(),
                         plan::ReadableBytes(candidate.memory_bytes),
                         plan::ReadableBytes(candidate.sent_bytes), OptionsOf(candidate));
}

// The quickest of those candidates that differ in accumulation and recomputation alone.
std::vector<const Candidate*> RunnersUp(const std::vector<Candidate>& candidates) {
  std::vector<const Candidate*> shown;
  const auto is_like = [](const Candidate& a, const Candidate& b) {
    return a.options.plan.preset == b.options.plan.preset &&
           a.options.plan.stages == b.options.plan.stages &&
           a.options.plan.tensor_ranks == b.options.plan.tensor_ranks &&
           a.options.dtype == b.options.dtype;
  };
  for (const Candidate& candidate : candidates) {
    if (is_like(candidate, candidates.front())) continue;
    const bool is_shown = std::any_of(shown.begin(), shown.end(), [&](const Candidate* other) {
      return is_like(candidate, *other);
    });
    if (!is_shown) shown.push_back(&candidate);
    if (shown.size() == kRunnersUp) break;
  }
  return shown;
}

}  // namespace

absl::StatusOr<std::string> Advise(const AdviceInput& input) {
  Search search(input);
  const std::vector<Candidate> candidates = search.Run();
  if (candidates.empty()) {
    const std::vector<Candidate> ladder = search.Ladder();
    if (ladder.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--train_batch_size=", SequencesOf(input), ": a step's sequences cannot be divided over ",
          input.shape.world_size, " ranks, or the model cannot be planned for them"));
    }
    const CheapestFit fit = FindCheapestFit(input.options, input.shape, input.memory_bytes_max);
    std::string text =
        absl::StrCat("no plan fits ", plan::ReadableBytes(input.memory_bytes_max), " on ",
                     input.shape.world_size, " ranks; from the quickest to the smallest:\n");
    for (const Candidate& rung : ladder) absl::StrAppend(&text, Line(rung));
    return absl::InvalidArgumentError(absl::StrCat(
        text, fit.options.empty() ? "choose a smaller model or shorter sequences"
                                  : absl::StrCat("what fits is ", fit.options, ", which takes ",
                                                 plan::ReadableBytes(fit.memory_bytes))));
  }
  const Candidate& best = candidates.front();
  std::string text = absl::StrCat(
      "advice for ", input.shape.world_size, " ranks and ", SequencesOf(input), " sequences of ",
      input.options.model.context, " tokens per step, of ", candidates.size(), " plans that fit ",
      plan::ReadableBytes(input.memory_bytes_max), "\n  ", input.devices, "\n\nquickest:\n");
  absl::StrAppend(&text, Line(best));
  absl::StrAppendFormat(&text,
                        "            computing %s, stages waiting %s, communication that nothing "
                        "hides %s, update %s\n",
                        Milliseconds(best.time.compute), Milliseconds(best.time.bubble),
                        Milliseconds(best.time.exposed), Milliseconds(best.time.update));
  absl::StrAppend(&text, "\nrunners-up:\n");
  for (const Candidate* candidate : RunnersUp(candidates)) absl::StrAppend(&text, Line(*candidate));
  return text;
}

bool VariesOption(absl::string_view option) {
  static constexpr absl::string_view kVaried[] = {"plan",
                                                  "stages",
                                                  "mesh",
                                                  "dtype",
                                                  "batch_size",
                                                  "gradient_accumulation_steps",
                                                  "recompute",
                                                  "gradient_checkpointing",
                                                  "shard_ranks",
                                                  "reshard_after_forward",
                                                  "backward_prefetch",
                                                  "prefetch_units",
                                                  "prefetch_elements",
                                                  "max_live_parameters",
                                                  "max_reuse_distance",
                                                  "persistence_threshold",
                                                  "model_persistence_threshold"};
  return absl::c_linear_search(kVaried, option);
}

}  // namespace muster::advice
