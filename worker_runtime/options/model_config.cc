#include "worker_runtime/options/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/config_tree.h"
#include "proto/config/json_text.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::plan {
namespace {

using Biases = DecoderParts::Biases;
using Scaling = RotaryPositions::Scaling;

// What changes no number that is computed here: names, tokens, dtypes, dropout, which training here
// leaves out, and how transformers computes.
constexpr absl::string_view kWithoutEffect[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "n_ctx",
    "pad_token_id",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

// The keys of an object, each of which must be asked for.
class Reading {
 public:
  // `node` is a map and outlives this.
  Reading(std::string file, const ConfigNode& node, std::string prefix = "")
      : file_(std::move(file)), node_(node), prefix_(std::move(prefix)) {}

  // The value at `key`; null if there is none, or null.
  const ConfigNode* Find(const std::string& key) {
    asked_.insert(key);
    const ConfigNode* const found = node_.Find(key);
    return found == nullptr || found->kind == ConfigNode::Kind::kNull ? nullptr : found;
  }

  // Each gives `otherwise` where there is no such key, and records that one is missing where that
  // is nothing.
  int64_t Whole(const std::string& key, std::optional<int64_t> otherwise = std::nullopt) {
    int64_t value = 0;
    const auto read = [&](const ConfigNode& node) {
      return node.kind == ConfigNode::Kind::kNumber && absl::SimpleAtoi(node.text, &value);
    };
    return Take(key, "a whole number", read) ? value : Otherwise(key, otherwise);
  }
  double Number(const std::string& key, std::optional<double> otherwise = std::nullopt) {
    double value = 0;
    const auto read = [&](const ConfigNode& node) {
      return node.kind == ConfigNode::Kind::kNumber && absl::SimpleAtod(node.text, &value);
    };
    return Take(key, "a number", read) ? value : Otherwise(key, otherwise);
  }
  bool Flag(const std::string& key, bool otherwise) {
    bool value = otherwise;
    const auto read = [&](const ConfigNode& node) {
      value = node.IsTrue();
      return node.kind == ConfigNode::Kind::kBool;
    };
    Take(key, "true or false", read);
    return value;
  }
  std::string Text(const std::string& key, std::optional<std::string> otherwise = std::nullopt) {
    std::string value;
    const auto read = [&](const ConfigNode& node) {
      value = node.text;
      return node.kind == ConfigNode::Kind::kText;
    };
    return Take(key, "a text", read) ? value : Otherwise(key, std::move(otherwise));
  }

  // Records what is wrong with the value at `key`; the first holds.
  template <typename... Why>
  void Refuse(const std::string& key, const Why&... why) {
    const ConfigNode* const node = node_.Find(key);
    const std::string value = node == nullptr ? "" : absl::StrCat("=", ShownValue(*node));
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat(file_, ":", node == nullptr ? node_.line : node->line, ": ", prefix_, key,
                     value, ": ", why...)));
  }
  // Records a value of `key` that is none of these.
  void Expect(const std::string& key, const std::string& value,
              const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    Refuse(key, "this is not computed here; expected ", absl::StrJoin(known, " or "));
  }
  // Records a key that was not asked for and is set to something.
  void RefuseOthers() {
    for (const ConfigMember& member : node_.members) {
      if (asked_.contains(member.key) || IsNothing(member.value)) continue;
      Refuse(member.key, "this key is not known here, and it may change the model",
             DidYouMean(member.key, {asked_.begin(), asked_.end()}),
             "; if it does not, take it out of the file");
    }
  }
  void Pass(absl::string_view key) { asked_.insert(std::string(key)); }
  void Add(const Reading& within) { status_.Update(within.status_); }
  const absl::Status& status() const { return status_; }
  const std::string& file() const { return file_; }

 private:
  template <typename Read>
  bool Take(const std::string& key, absl::string_view what, const Read& read) {
    const ConfigNode* const node = Find(key);
    if (node == nullptr) return false;
    if (read(*node)) return true;
    Refuse(key, "expected ", what);
    return false;
  }
  template <typename T>
  T Otherwise(const std::string& key, std::optional<T> otherwise) {
    if (!otherwise.has_value() && node_.Find(key) == nullptr) Refuse(key, "this key is missing");
    if (!otherwise.has_value() && node_.Find(key) != nullptr) Refuse(key, "this must be set");
    return std::move(otherwise).value_or(T());
  }
  // What switches nothing on.
  static bool IsNothing(const ConfigNode& node) {
    using Kind = ConfigNode::Kind;
    double number = 1;
    return node.kind == Kind::kNull || (node.kind == Kind::kBool && !node.IsTrue()) ||
           (node.kind == Kind::kText && node.text.empty()) ||
           (node.kind == Kind::kNumber && absl::SimpleAtod(node.text, &number) && number == 0) ||
           (node.kind == Kind::kList && node.items.empty()) ||
           (node.kind == Kind::kMap && node.members.empty());
  }

  const std::string file_;
  const ConfigNode& node_;
  const std::string prefix_;
  std::set<std::string> asked_;
  absl::Status status_;
};

void ReadScaling(Reading& in, int64_t context, RotaryPositions& rotary) {
  const std::string type = in.Text("rope_type", in.Text("type", "default"));
  in.Expect("rope_type", type, {"default", "linear", "llama3"});
  rotary.base = in.Number("rope_theta", rotary.base);
  if (in.Number("partial_rotary_factor", 1) != 1) {
    in.Refuse("partial_rotary_factor", "heads are turned whole here; expected 1");
  }
  if (type == "linear" || type == "llama3") rotary.factor = in.Number("factor");
  if (type == "linear") rotary.scaling = Scaling::kLinear;
  if (type == "llama3") {
    rotary.scaling = Scaling::kLlama3;
    rotary.low_factor = in.Number("low_freq_factor");
    rotary.high_factor = in.Number("high_freq_factor");
    rotary.original_context = in.Whole("original_max_position_embeddings", context);
  }
  in.RefuseOthers();
}

// Transformers 4 writes rope_theta and rope_scaling, 5 one object with both.
RotaryPositions ReadRotary(Reading& in, int64_t context) {
  RotaryPositions rotary;
  rotary.base = in.Number("rope_theta", rotary.base);
  rotary.context_max = context;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ConfigNode* const node = in.Find(key);
    if (node == nullptr) continue;
    if (node->kind != ConfigNode::Kind::kMap) {
      in.Refuse(key, "expected an object");
      continue;
    }
    Reading scaling(in.file(), *node, absl::StrCat(key, "."));
    ReadScaling(scaling, context, rotary);
    in.Add(scaling);
  }
  return rotary;
}

// The longest context in which every token still sees all before it.
int64_t ReadContext(Reading& in, const std::string& type) {
  const int64_t made_for = in.Whole("max_position_embeddings");
  if (!absl::StartsWith(type, "qwen") && type != "mistral") return made_for;
  const int64_t window = in.Whole("sliding_window", made_for);
  in.Pass("max_window_layers");
  bool is_on = type == "mistral";
  if (!is_on) is_on = in.Flag("use_sliding_window", false);
  if (const ConfigNode* const layers = in.Find("layer_types")) {
    for (const ConfigNode& layer : layers->items) {
      if (layer.text == "full_attention" || layer.text == "sliding_attention") continue;
      in.Refuse("layer_types", "a layer of ", ShownValue(layer),
                " is not computed here; expected full_attention or sliding_attention");
    }
  }
  return is_on ? std::min(made_for, window) : made_for;
}

Biases ReadBiases(Reading& in, const std::string& type) {
  if (type == "qwen2") return Biases::kQkv;
  const bool attention = in.Flag("attention_bias", false);
  const bool mlp = in.Flag("mlp_bias", false);
  if (attention != mlp) {
    in.Refuse("attention_bias", "biases of attention and none of the MLP, or the other way round, ",
              "are not computed here; expected both or none");
  }
  return attention && mlp ? Biases::kAll : Biases::kNone;
}

DecoderParts::Multipliers ReadMultipliers(Reading& in) {
  DecoderParts::Multipliers by = {.embedding = in.Number("embedding_multiplier", 1),
                                  .residual = in.Number("residual_multiplier", 1),
                                  .scores = in.Number("attention_multiplier", 1)};
  const double logits = in.Number("logits_scaling", 1);
  if (!(by.scores > 0)) in.Refuse("attention_multiplier", "expected a number above 0");
  if (!(logits > 0)) in.Refuse("logits_scaling", "expected a number above 0");
  if (logits > 0) by.logits = 1 / logits;
  return by;
}

// What Llama and those that followed it have.
DecoderConfig ReadLlama(Reading& in, const std::string& type) {
  in.Expect("hidden_act", in.Text("hidden_act", "silu"), {"silu"});
  DecoderConfig config = {.layers = in.Whole("num_hidden_layers"),
                          .heads = in.Whole("num_attention_heads"),
                          .hidden_size = in.Whole("hidden_size"),
                          .context = ReadContext(in, type),
                          .vocabulary = in.Whole("vocab_size"),
                          .mlp_size = in.Whole("intermediate_size")};
  const bool has_own_default = type != "llama" && type != "granite";
  config.kv_heads = has_own_default ? in.Whole("num_key_value_heads")
                                    : in.Whole("num_key_value_heads", config.heads);
  config.head_size = in.Whole("head_dim", type == "qwen3" ? 128 : 0);
  if (config.head_size * config.heads == config.hidden_size) config.head_size = 0;
  config.parts = {.norm = NormKind::kRms,
                  .norm_epsilon = in.Number("rms_norm_eps", 1e-6),
                  .rotary = ReadRotary(in, config.context),
                  .mlp = Nonlinearity::kSwiGlu,
                  .biases = ReadBiases(in, type),
                  .head_norms = type == "qwen3",
                  .tied = in.Flag("tie_word_embeddings", false)};
  if (type == "granite") config.parts.multipliers = ReadMultipliers(in);
  return config;
}

DecoderConfig ReadGpt2(Reading& in) {
  in.Expect("activation_function", in.Text("activation_function", "gelu_new"),
            {"gelu_new", "gelu_pytorch_tanh"});
  if (!in.Flag("scale_attn_weights", true)) {
    in.Refuse("scale_attn_weights", "scores are divided by the root of the head size here");
  }
  const int64_t positions = in.Whole("n_positions");
  DecoderConfig config = {.layers = in.Whole("n_layer"),
                          .heads = in.Whole("n_head"),
                          .hidden_size = in.Whole("n_embd"),
                          .context = positions,
                          .vocabulary = in.Whole("vocab_size"),
                          .mlp_size = in.Whole("n_inner", 0),
                          .parts = {.norm_epsilon = in.Number("layer_norm_epsilon", 1e-5),
                                    .positions = positions,
                                    .tied = in.Flag("tie_word_embeddings", true)}};
  if (config.mlp_size == 4 * config.hidden_size) config.mlp_size = 0;
  return config;
}

// --- and back

// Members of an object, one a line.
class Writing {
 public:
  void Add(absl::string_view key, absl::string_view text) {
    Raw(key, absl::StrCat("\"", text, "\""));
  }
  void Add(absl::string_view key, int64_t number) { Raw(key, absl::StrCat(number)); }
  void Add(absl::string_view key, double number) { Raw(key, ExactText(number)); }
  void AddFlag(absl::string_view key, bool value) { Raw(key, value ? "true" : "false"); }
  void Raw(absl::string_view key, absl::string_view value) {
    members_.push_back(absl::StrCat("\"", key, "\": ", value));
  }
  std::string Text(absl::string_view before = "  ") const {
    return absl::StrCat("{\n", before, absl::StrJoin(members_, absl::StrCat(",\n", before)), "\n",
                        before.substr(2), "}");
  }

 private:
  std::vector<std::string> members_;
};

// Which model of transformers has these parts; empty: none.
std::string TypeOf(const DecoderConfig& config) {
  const DecoderParts& parts = config.parts;
  const bool is_plain = !parts.head_norms && parts.multipliers == DecoderParts::Multipliers();
  const bool has_own_heads =
      config.key_heads() != config.heads || config.query_width() != config.hidden_size;
  if (parts.norm == NormKind::kLayer) {
    const bool is_gpt2 = !parts.rotary.has_value() && parts.mlp == Nonlinearity::kGelu &&
                         parts.biases == Biases::kAll && is_plain && !has_own_heads;
    return is_gpt2 ? "gpt2" : "";
  }
  if (!parts.rotary.has_value() || parts.mlp != Nonlinearity::kSwiGlu) return "";
  if (parts.biases == Biases::kQkv) return is_plain ? "qwen2" : "";
  if (is_plain) return "llama";
  if (!parts.head_norms) return "granite";
  const bool is_qwen3 = parts.multipliers == DecoderParts::Multipliers();
  return is_qwen3 && parts.biases == Biases::kNone ? "qwen3" : "";
}

void WriteRotary(const RotaryPositions& rotary, Writing& out) {
  out.Add("rope_theta", rotary.base);
  if (rotary.scaling == Scaling::kNone) return;
  const bool is_llama3 = rotary.scaling == Scaling::kLlama3;
  Writing scaling;
  scaling.Add("rope_type", is_llama3 ? "llama3" : "linear");
  scaling.Add("factor", rotary.factor);
  if (is_llama3) {
    scaling.Add("low_freq_factor", rotary.low_factor);
    scaling.Add("high_freq_factor", rotary.high_factor);
    scaling.Add("original_max_position_embeddings", rotary.original_context);
  }
  out.Raw("rope_scaling", scaling.Text("    "));
}

void WriteLlama(const DecoderConfig& config, const std::string& type, Writing& out) {
  const DecoderParts& parts = config.parts;
  const int64_t made_for = parts.rotary->context_max;
  out.Add("hidden_act", "silu");
  out.Add("hidden_size", config.hidden_size);
  out.Add("intermediate_size", config.mlp_width());
  out.Add("num_hidden_layers", config.layers);
  out.Add("num_attention_heads", config.heads);
  out.Add("num_key_value_heads", config.key_heads());
  out.Add("head_dim", config.head_width());
  out.Add("max_position_embeddings", made_for == 0 ? config.context : made_for);
  out.Add("rms_norm_eps", parts.norm_epsilon);
  WriteRotary(*parts.rotary, out);
  if (type != "qwen2") {
    out.AddFlag("attention_bias", parts.biases == Biases::kAll);
    if (type != "qwen3") out.AddFlag("mlp_bias", parts.biases == Biases::kAll);
  }
  if (type != "granite") return;
  const double scores = parts.multipliers.scores;
  out.Add("embedding_multiplier", parts.multipliers.embedding);
  out.Add("residual_multiplier", parts.multipliers.residual);
  out.Add("attention_multiplier",
          scores == 0 ? 1 / std::sqrt(static_cast<double>(config.head_width())) : scores);
  out.Add("logits_scaling", 1 / parts.multipliers.logits);
}

}  // namespace

absl::StatusOr<std::string> FormatModelConfig(const DecoderConfig& config) {
  struct Named {
    const char* type;
    const char* architecture;
  };
  constexpr Named kArchitectures[] = {{"gpt2", "GPT2LMHeadModel"},
                                      {"llama", "LlamaForCausalLM"},
                                      {"qwen2", "Qwen2ForCausalLM"},
                                      {"qwen3", "Qwen3ForCausalLM"},
                                      {"granite", "GraniteForCausalLM"}};
  const std::string type = TypeOf(config);
  Writing out;
  for (const Named& named : kArchitectures) {
    if (type != named.type) continue;
    out.Raw("architectures", absl::StrCat("[\"", named.architecture, "\"]"));
  }
  if (type.empty()) {
    return absl::InvalidArgumentError(
        "transformers has no model of these parts: norms, positions, nonlinearity, biases and "
        "multipliers are not together those of GPT-2, Llama, Qwen or Granite");
  }
  out.Add("model_type", type);
  out.Add("vocab_size", config.vocabulary);
  out.AddFlag("tie_word_embeddings", config.parts.tied);
  if (type != "gpt2") {
    WriteLlama(config, type, out);
    return out.Text() + "\n";
  }
  out.Add("activation_function", "gelu_new");
  out.Add("n_layer", config.layers);
  out.Add("n_head", config.heads);
  out.Add("n_embd", config.hidden_size);
  out.Add("n_inner", config.mlp_width());
  out.Add("n_positions", config.num_positions());
  out.Add("layer_norm_epsilon", config.parts.norm_epsilon);
  return out.Text() + "\n";
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& file, const std::string& text) {
  const absl::StatusOr<ConfigNode> root = ReadJson(text);
  if (!root.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", root.status().message()));
  }
  if (root->kind != ConfigNode::Kind::kMap) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": expected an object"));
  }
  Reading in(file, *root);
  for (const absl::string_view key : kWithoutEffect) in.Pass(key);
  ModelConfig config = {.type = in.Text("model_type")};
  in.Expect("model_type", config.type, {"gpt2", "llama", "mistral", "qwen2", "qwen3", "granite"});
  MUSTER_RETURN_IF_ERROR(in.status());
  config.decoder = config.type == "gpt2" ? ReadGpt2(in) : ReadLlama(in, config.type);
  in.RefuseOthers();
  MUSTER_RETURN_IF_ERROR(in.status());
  const absl::Status valid = config.decoder.Validate();
  if (valid.ok()) return config;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", valid.message()));
}

absl::StatusOr<DecoderConfig> FindModel(const std::string& text) {
  if (!absl::StartsWith(text, "{")) {
    absl::StatusOr<DecoderConfig> known = FindKnownModel(text);
    if (known.ok()) return known;
    return absl::InvalidArgumentError(
        absl::StrCat(known.status().message(), "; or the directory of one, with its config.json"));
  }
  MUSTER_ASSIGN_OR_RETURN(const ModelConfig read, ReadModelConfig("config.json", text));
  DecoderConfig model = read.decoder;
  model.context = std::min(model.context, kContextOfFiles);
  return model;
}

}  // namespace muster::plan
