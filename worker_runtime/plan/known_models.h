// Sizes of models that people know by name. Those of GPT-2 can be trained here; the others can be
// planned: their parameters and activations are counted by arithmetic.
//
// Threads: pure.
// Source:  the models' published configurations (config.json of each); Radford et al. 2019; Touvron
//          et al. 2023; Grattafiori et al. 2024; IBM Granite 3.0, 2024; Qwen 2.5 and 3 reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/decoder_config.h"
#include "muster/dtype.h"
#include "muster/plan.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

struct KnownModel {
  std::string name;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t hidden_size = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  std::optional<DecoderConfig> gpt;  // a GPT-2; what follows is of the others

  // Blocks of RMSNorm, grouped-query attention with rotary positions and a gated MLP.
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t mlp_size = 0;
  bool tied = false;  // the head uses the table of embeddings
  enum class Attention : uint8_t { kPlain, kBiases, kNorms } attention = Attention::kPlain;
};

// Finds a model by its name, also behind an owner as in "ibm/granite-7b-base". Errors:
// kInvalidArgument: no such name (with the nearest one).
absl::StatusOr<KnownModel> FindKnownModel(absl::string_view name);
std::vector<std::string> KnownModelNames();

// Units (the embedding, each block, the head) and parameters of a model that is no GPT.
std::vector<std::string> UnitNamesOf(const KnownModel& model);
std::vector<ParameterInfo> ParametersOf(const KnownModel& model, DType dtype = DType::kF32);
int64_t NumParametersOf(const KnownModel& model);
// Floating point operations of forward and backward pass per token of a sequence.
double FlopsPerToken(const KnownModel& model, int64_t sequence);

struct TracedBatch {
  int64_t batch = 1;
  int64_t sequence = 1;
  DType dtype = DType::kF32;
  Recompute recompute;
};
// Floating point operations of each unit's products per token, forward and backward. [units]
std::vector<double> ProductsOfUnits(const KnownModel& model, int64_t sequence);
// What a micro-batch does in each stage, as layers that keep what Decoder's keep: the input of each
// product and what the gradients of norms, attention and the gate need.
//
// Shapes: first_units and result [stages]; 0 comes first.
std::vector<StageInfo> TraceStages(const KnownModel& model, const TracedBatch& batch,
                                   absl::Span<const int> first_units);

}  // namespace muster::plan
