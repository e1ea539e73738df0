#include "worker_runtime/train/training_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/train/figures.h"

namespace muster::train {
namespace {

std::string Line(absl::string_view name, absl::string_view text) {
  return absl::StrFormat("  %-9s%s\n", name, text);
}

std::string DescribeModel(const StartFacts& facts) {
  const DecoderConfig& model = facts.model;
  const bool is_widened = SizeOf(facts.dtype) < SizeOf(facts.products);
  return absl::StrCat(
      plan::NameOf(model), ", ", Counted(model.layers, "layer"), ", ", plan::DescribeHeads(model),
      ", hidden size ", model.hidden_size, ", context ", model.context, ", vocabulary ",
      model.vocabulary, ": ", ShortCount(model.num_parameters()), " parameters in ",
      ToString(facts.dtype),
      is_widened ? absl::StrCat(", computed in ", ToString(facts.products), " by ", facts.kernels,
                                " kernels: it saves memory on this CPU, not time")
                 : "");
}

std::string DescribePlan(const StartFacts& facts) {
  const int64_t tensor_ranks = facts.plan.tensor_ranks;
  const int64_t replicas = facts.size / facts.plan.stages / tensor_ranks;
  const int64_t tokens_per_step =
      replicas * facts.plan.accumulation * facts.batch_size * facts.model.context;
  const bool is_pipeline = facts.plan.stages > 1;
  std::vector<std::string> factors = {
      Counted(replicas, is_pipeline || tensor_ranks > 1 ? "replica" : "rank")};
  if (facts.plan.accumulation > 1) {
    factors.push_back(absl::StrCat(facts.plan.accumulation, " micro-batches"));
  }
  factors.push_back(Counted(facts.batch_size, "row"));
  factors.push_back(absl::StrCat(facts.model.context, " tokens"));
  const GradientReduction reduction = facts.plan.gradient_reduction;
  const bool says_reduction = facts.plan.accumulation > 1 &&
                              facts.plan.gradients.placement == Placement::kShard &&
                              reduction != GradientReduction::kChosen;
  return absl::StrCat(
      facts.plan.preset, ", ", ToString(facts.plan.mode), " sums, ",
      is_pipeline ? absl::StrCat(facts.plan.stages, " stages, ") : "",
      tensor_ranks > 1 ? absl::StrCat(tensor_ranks, " tensor ranks, ") : "",
      absl::StrJoin(factors, " x "), " = ", tokens_per_step, " tokens per step",
      says_reduction ? absl::StrCat(", gradients reduced ", reduction == GradientReduction::kOnce
                                                                ? "once per step"
                                                                : "with each micro-batch")
                     : "");
}

std::string DescribeRounds(const EndFacts& facts) {
  return absl::StrCat("trained in ", facts.rounds, " rounds of the job",
                      facts.repeated_steps == 0
                          ? ""
                          : absl::StrCat("; ", Counted(facts.repeated_steps, "step"),
                                         facts.repeated_steps == 1 ? " was" : " were",
                                         " lost between them and made again"));
}

// "forward 41% (12.1 ms), …": the parts of a mean step.
std::string DescribeTimes(const EndFacts& facts) {
  const TrainingTotals& totals = facts.totals;
  const StepTimes& times = totals.times();
  const auto part = [&](absl::string_view name, absl::Duration time) {
    return absl::StrCat(name, " ", ShortDuration(time / totals.num_steps()), " (",
                        Percent(absl::ToDoubleSeconds(time), absl::ToDoubleSeconds(times.total)),
                        ")");
  };
  std::vector<std::string> parts = {part("forward", times.forward),
                                    part("backward", times.backward)};
  if (facts.size > 1) parts.push_back(part("waiting", times.wait));
  parts.push_back(part("update", times.update));
  return absl::StrJoin(parts, ", ");
}

std::string DescribeCommunication(const EndFacts& facts) {
  const StepTimes& times = facts.totals.times();
  const double busy = absl::ToDoubleSeconds(times.communication);
  const double hidden = std::max(0.0, busy - absl::ToDoubleSeconds(times.wait));
  std::vector<std::string> parts;
  if (busy > 0) {
    parts.push_back(
        absl::StrCat(ShortDuration(times.communication / facts.totals.num_steps()), " per step"));
    parts.push_back(absl::StrCat(Percent(hidden, busy), " of it hidden behind the backward pass"));
  }
  if (facts.wire_bytes_per_step > 0) {
    parts.push_back(absl::StrCat(ShortBytes(facts.wire_bytes_per_step), " sent per step"));
  }
  return absl::StrJoin(parts, ", ");
}

std::string DescribeMemory(const EndFacts& facts) {
  const EngineMemory& memory = facts.memory;
  std::string text = absl::StrCat(
      "parameters ", ShortBytes(memory.parameters),
      memory.gathered > 0 ? absl::StrCat(", gathered ", ShortBytes(memory.gathered)) : "",
      ", gradients ", ShortBytes(memory.gradients), ", optimizer ", ShortBytes(memory.optimizer),
      ", activations ", ShortBytes(memory.activations_peak),
      memory.exchange > 0 ? absl::StrCat(", exchange ", ShortBytes(memory.exchange)) : "",
      "; together ", ShortBytes(memory.total()));
  if (facts.resident_bytes > 0) {
    absl::StrAppend(&text, ", whole process ", ShortBytes(facts.resident_bytes));
  }
  return text;
}

}  // namespace

std::string DescribeStart(const StartFacts& facts) {
  std::string text = absl::StrCat(
      Line("model", DescribeModel(facts)), Line("data", facts.data),
      Line("plan", DescribePlan(facts)),
      Line("runs on", absl::StrCat(facts.kernels, " kernels, ", facts.backend, " communicator")));
  if (!facts.plan.unit_costs.empty()) {
    absl::StrAppend(&text, Line("cut by", ToString(facts.plan.unit_costs)));
  }
  if (!facts.weights.empty()) absl::StrAppend(&text, Line("weights", facts.weights));
  if (!facts.adapters.empty()) absl::StrAppend(&text, Line("adapters", facts.adapters));
  if (!facts.device_notes.empty()) absl::StrAppend(&text, Line("device", facts.device_notes));
  if (!facts.exchange_notes.empty()) absl::StrAppend(&text, Line("exchange", facts.exchange_notes));
  if (!facts.resumed.empty()) absl::StrAppend(&text, Line("resumed", facts.resumed));
  return text;
}

std::string DescribeRound(const RoundFacts& facts) {
  const std::string begin = absl::StrCat("round ", facts.round, ": ");
  const std::string ranks = Counted(facts.size, "rank");
  if (!facts.whose_state.empty()) {
    return absl::StrCat(begin, "goes on after step ", facts.step, " with ", ranks, " (",
                        facts.whose_state, ")\n");
  }
  if (facts.step > 0) {
    return absl::StrCat(begin, "goes on after step ", facts.step, " with ", ranks,
                        " (the checkpoint in ", facts.resume, "; ", facts.no_state, ")\n");
  }
  return absl::StrCat(begin, "starts from the beginning with ", ranks, " (",
                      facts.resume.empty() ? "there is no --resume"
                                           : absl::StrCat("no checkpoint in ", facts.resume),
                      "; ", facts.no_state, ")\n");
}

void TrainingTotals::Add(const StepResult& result) {
  ++num_steps_;
  num_tokens_ += result.num_tokens;
  if (!result.skipped) {
    loss_tokens_ += result.num_tokens;
    loss_sum_ += result.loss * static_cast<double>(result.num_tokens);
  }
  times_.forward += result.times.forward;
  times_.backward += result.times.backward;
  times_.wait += result.times.wait;
  times_.update += result.times.update;
  times_.total += result.times.total;
  times_.communication += result.times.communication;
}

double TrainingTotals::mean_loss() const {
  return loss_tokens_ == 0 ? 0 : loss_sum_ / static_cast<double>(loss_tokens_);
}

std::string DescribeEnd(const EndFacts& facts) {
  const TrainingTotals& totals = facts.totals;
  if (totals.num_steps() == 0) return "";
  const double seconds = absl::ToDoubleSeconds(facts.elapsed);
  const double speed = seconds > 0 ? static_cast<double>(totals.num_tokens()) / seconds : 0;
  std::string text =
      Line("trained", absl::StrCat(Counted(totals.num_steps(), "step"), ", ",
                                   ShortCount(totals.num_tokens()), " tokens in ",
                                   ClockTime(facts.elapsed), ": ", ShortCount(speed), " tok/s"));
  if (facts.rounds > 1) absl::StrAppend(&text, Line("rounds", DescribeRounds(facts)));
  absl::StrAppend(&text, Line("step", DescribeTimes(facts)));
  if (facts.size > 1) absl::StrAppend(&text, Line("reduce", DescribeCommunication(facts)));
  absl::StrAppend(&text, Line("memory", DescribeMemory(facts)));
  return text;
}

}  // namespace muster::train
