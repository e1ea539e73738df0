#include "worker_runtime/options/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/known_models.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

// Those of the published Llama-3.2-1B, of which `more` are further members.
std::string Llama32(const std::string& more = "") {
  return absl::StrCat(R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 128000,
  "eos_token_id": 128001,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 8192,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 16,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0",
  "use_cache": true,
  "vocab_size": 128256)",
                      more, "\n}\n");
}

// A small one of `type`.
std::string Small(const std::string& type, const std::string& more = "") {
  return absl::StrCat("{\"model_type\": \"", type,
                      "\", \"hidden_size\": 16, \"num_hidden_layers\": 2, "
                      "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                      "\"intermediate_size\": 24, \"vocab_size\": 256, "
                      "\"max_position_embeddings\": 64",
                      more, "}");
}

DecoderConfig Read(const std::string& text) {
  const auto read = ReadModelConfig("config.json", text);
  EXPECT_THAT(read, IsOk());
  return read.ok() ? read->decoder : DecoderConfig();
}

auto Refused(const std::string& why) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
}

TEST(ModelConfig, OfAPublishedModelIsTheKnownOne) {
  EXPECT_EQ(Read(Llama32()), *FindKnownModel("llama-3.2-1b"));
  const std::string qwen = R"({"model_type": "qwen2", "hidden_size": 896,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
    "max_window_layers": 24, "sliding_window": 32768, "use_sliding_window": false,
    "use_mrope": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "attention_dropout": 0.0})";
  EXPECT_EQ(Read(qwen), *FindKnownModel("qwen2.5-0.5b"));
  const std::string granite = R"({"model_type": "granite", "hidden_size": 2048,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 49155, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 10000, "rope_scaling": null, "hidden_act": "silu",
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625,
    "logits_scaling": 8.0, "attention_bias": false, "mlp_bias": false, "attention_dropout": 0.1,
    "tie_word_embeddings": true})";
  EXPECT_EQ(Read(granite), *FindKnownModel("granite-3.0-2b-base"));
}

TEST(ModelConfig, OfGpt2) {
  const std::string gpt2 = R"({"activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})";
  DecoderConfig config = Read(gpt2);
  EXPECT_EQ(config.parts.positions, 1024);
  EXPECT_EQ(NameOf(config), "gpt2-124m");
  config.context = 256;  // the table stays as it is
  EXPECT_THAT(config.Validate(), IsOk());
  EXPECT_EQ(config.num_parameters(), FindKnownModel("gpt2-124m")->num_parameters());
  config.context = 1025;
  EXPECT_THAT(config.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("context must be at most 1024")));
}

TEST(ModelConfig, OfTransformersFive) {
  const std::string qwen3 =
      Small("qwen3", R"(, "head_dim": 8, "layer_types": ["full_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "dtype": "float32")");
  const DecoderConfig config = Read(qwen3);
  EXPECT_EQ(config.parts.rotary->base, 1e6);
  EXPECT_TRUE(config.parts.head_norms);
  EXPECT_EQ(config.head_size, 8);
}

TEST(ModelConfig, HasNoLongerContextThanItsWindow) {
  EXPECT_EQ(Read(Small("mistral", ", \"sliding_window\": 32")).parts.rotary->context_max, 32);
  EXPECT_EQ(Read(Small("mistral", ", \"sliding_window\": null")).context, 64);
  EXPECT_EQ(Read(Small("qwen2", ", \"sliding_window\": 32")).context, 64);
  EXPECT_EQ(Read(Small("qwen2", ", \"sliding_window\": 32, \"use_sliding_window\": true")).context,
            32);
}

TEST(ModelConfig, RefusesWhatItDoesNotCompute) {
  const auto with = [](const std::string& more) {
    return ReadModelConfig("m/config.json", Small("llama", ", " + more));
  };
  EXPECT_THAT(with("\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}"),
              Refused("m/config.json:1: rope_scaling.rope_type=yarn: this is not computed here; "
                      "expected default or linear or llama3"));
  EXPECT_THAT(with("\"rope_scaling\": {\"type\": \"linear\"}"),
              Refused("rope_scaling.factor: this key is missing"));
  EXPECT_THAT(with("\"num_experts\": 8"), Refused("num_experts=8: this key is not known here"));
  EXPECT_THAT(with("\"quantization_config\": {\"bits\": 4}"), Refused("quantization_config"));
  EXPECT_THAT(with("\"tie_word_embedings\": true"), Refused("did you mean tie_word_embeddings?"));
  EXPECT_THAT(with("\"hidden_act\": \"gelu\""), Refused("hidden_act=gelu"));
  EXPECT_THAT(with("\"attention_bias\": true"), Refused("expected both or none"));
  EXPECT_THAT(with("\"head_dim\": \"8\""), Refused("head_dim=8: expected a whole number"));
  EXPECT_THAT(ReadModelConfig("c", Small("mixtral")),
              Refused("model_type=mixtral: this is not computed here; expected gpt2 or llama"));
  EXPECT_THAT(ReadModelConfig("c", Small("granite", ", \"logits_scaling\": 0")),
              Refused("logits_scaling=0: expected a number above 0"));
  EXPECT_THAT(ReadModelConfig("c", "{\"model_type\": \"llama\"}"), Refused("this key is missing"));
  EXPECT_THAT(ReadModelConfig("c", Small("llama", ", \"num_experts\": 0, \"is_decoder\": false")),
              IsOk());
  EXPECT_THAT(ReadModelConfig("c", "[1]"), Refused("c"));
  EXPECT_THAT(ReadModelConfig("c", "{"), Refused("c: "));
}

TEST(ModelConfig, IsReadBackAsItWasFormatted) {
  for (const std::string& name : KnownModelNames()) {
    const DecoderConfig known = *FindKnownModel(name);
    const auto text = FormatModelConfig(known);
    ASSERT_THAT(text, IsOk()) << name;
    DecoderConfig read = Read(*text);
    read.parts.positions = known.parts.positions;
    EXPECT_EQ(read, known) << *text;
  }
  DecoderConfig linear = *FindKnownModel("llama-2-7b");
  linear.parts.rotary->scaling = RotaryPositions::Scaling::kLinear;
  linear.parts.rotary->factor = 2.5;
  linear.parts.biases = DecoderParts::Biases::kAll;
  EXPECT_EQ(Read(*FormatModelConfig(linear)), linear);
}

TEST(ModelConfig, OfPartsThatNoModelHasIsNotFormatted) {
  DecoderConfig config = *FindKnownModel("qwen2.5-0.5b");
  config.parts.mlp = Nonlinearity::kGelu;
  EXPECT_THAT(FormatModelConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no model of these parts")));
}

}  // namespace
}  // namespace muster::plan
