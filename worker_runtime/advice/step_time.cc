#include "worker_runtime/advice/step_time.h"

#include <algorithm>

#include "worker_runtime/plan/state_types.h"

namespace muster::advice {
namespace {

// Forward is a third of forward and backward together.
constexpr double kForward = 1.0 / 3;
constexpr double kSelective = 0.02;  // GELU again, which is no product

double RecomputedShare(Recompute::Kind kind) {
  switch (kind) {
    case Recompute::Kind::kNone:
      return 0;
    case Recompute::Kind::kSelective:
      return kSelective;
    case Recompute::Kind::kFull:
      return kForward;
  }
  return 0;
}

double Seconds(int64_t bytes, double rate) {
  return rate > 0 ? static_cast<double>(bytes) / rate : 0;
}

}  // namespace

StepTime PredictStepTime(const plan::PlanPageInput& job, const plan::RankMemory& memory,
                         const RankRates& rates) {
  const plan::PlanOptions& options = job.options;
  const Plan& plan = options.plan;
  const auto sent = [&](plan::ActionKind kind) {
    return memory.figures.sent[static_cast<size_t>(kind)];
  };
  const auto micro_batches = static_cast<double>(plan.accumulation);
  const double tokens = micro_batches * static_cast<double>(options.batch_size) *
                        static_cast<double>(options.model.context) /
                        static_cast<double>(job.places() * plan.tensor_ranks);
  StepTime time;
  const double products = options.model.flops_per_token() * tokens / rates.flops;
  time.compute = products * (1 + rates.other_share) * (1 + RecomputedShare(plan.recompute.kind));
  // Interleaved stages wait for a part of what a rank computes.
  time.bubble = time.compute * static_cast<double>(job.places() - 1) / micro_batches *
                static_cast<double>(job.places()) / static_cast<double>(job.stages.size());

  const bool is_one_node = job.world_size <= job.ranks_of_node;
  const double rate = is_one_node || rates.network <= 0 ? rates.node_links
                                                        : std::min(rates.node_links, rates.network);
  const bool streams = plan.gradients.placement == Placement::kShard &&
                       plan.gradient_reduction != GradientReduction::kOnce;
  const double backward = time.compute * (1 - kForward) / (streams ? 1 : micro_batches);
  const double gradients =
      Seconds(sent(plan::ActionKind::kReduce) + sent(plan::ActionKind::kReplicate), rate);
  const double parameters = Seconds(sent(plan::ActionKind::kUnshard), rate);
  const double handed_on = Seconds(sent(plan::ActionKind::kSend), rate);
  // A pass waits for what tensor ranks add up, who lie on one node where they can.
  const double links = plan.tensor_ranks <= job.ranks_of_node ? rates.node_links : rate;
  const double combined = Seconds(sent(plan::ActionKind::kCombine), links);
  const double hidden = rates.hidden_share;
  // Replicated parameters of a sharded optimizer are gathered behind the update, where little runs.
  const bool gathers_in_passes = plan.parameters.placement == Placement::kShard;
  time.exposed = std::max(0.0, gradients - (plan.overlap ? hidden * backward : 0)) +
                 std::max(0.0, parameters - (gathers_in_passes ? hidden * time.compute : 0)) +
                 handed_on + combined;
  // Gradient, master and two moments are read, and the last three and the parameter written.
  const int64_t optimizer = plan::At(memory.figures.peak, plan::Arena::kOptimizer);
  time.update = rates.memory_bandwidth > 0 ? 2.5 * Seconds(optimizer, rates.memory_bandwidth) : 0;
  return time;
}

}  // namespace muster::advice
