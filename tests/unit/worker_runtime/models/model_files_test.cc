#include "muster/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/buffer.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

struct Tensor {
  std::vector<int64_t> shape;
  Floats values;
};
using Tensors = std::map<std::string, Tensor>;

// Each element of all tensors is another number.
void Add(Tensors& tensors, const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  Tensor& tensor = tensors[name] = {.shape = std::move(shape)};
  const auto first = static_cast<float>(1000 * tensors.size());
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(first + static_cast<float>(i));
}

constexpr char kLlama[] =
    R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 6, "vocab_size": 10,
        "max_position_embeddings": 16})";

Tensors Llama(const std::string& prefix = "model.") {
  Tensors tensors;
  Add(tensors, prefix + "embed_tokens.weight", {10, 8});
  const std::string block = prefix + "layers.0.";
  Add(tensors, block + "input_layernorm.weight", {8});
  Add(tensors, block + "self_attn.q_proj.weight", {8, 8});
  Add(tensors, block + "self_attn.k_proj.weight", {4, 8});
  Add(tensors, block + "self_attn.v_proj.weight", {4, 8});
  Add(tensors, block + "self_attn.o_proj.weight", {8, 8});
  Add(tensors, block + "post_attention_layernorm.weight", {8});
  Add(tensors, block + "mlp.gate_proj.weight", {6, 8});
  Add(tensors, block + "mlp.up_proj.weight", {6, 8});
  Add(tensors, block + "mlp.down_proj.weight", {8, 6});
  Add(tensors, prefix + "norm.weight", {8});
  Add(tensors, "lm_head.weight", {10, 8});
  return tensors;
}

constexpr char kGpt2[] =
    R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16,
        "vocab_size": 10})";

Tensors Gpt2(const std::string& prefix = "transformer.") {
  Tensors tensors;
  Add(tensors, prefix + "wte.weight", {10, 8});
  Add(tensors, prefix + "wpe.weight", {16, 8});
  const std::string block = prefix + "h.0.";
  for (const char* norm : {"ln_1", "ln_2"}) {
    Add(tensors, block + norm + ".weight", {8});
    Add(tensors, block + norm + ".bias", {8});
  }
  const auto add = [&](const std::string& layer, int64_t inputs, int64_t outputs) {
    Add(tensors, block + layer + ".weight", {inputs, outputs});
    Add(tensors, block + layer + ".bias", {outputs});
  };
  add("attn.c_attn", 8, 24);
  add("attn.c_proj", 8, 8);
  add("mlp.c_fc", 8, 32);
  add("mlp.c_proj", 32, 8);
  Add(tensors, prefix + "ln_f.weight", {8});
  Add(tensors, prefix + "ln_f.bias", {8});
  return tensors;
}

class ModelFilesTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const { return directory_.File(name); }
  void WriteText(const std::string& name, const std::string& text) {
    WriteFile(PathOf(name), text);
  }
  void WriteTensors(const Tensors& tensors, const std::string& name = "model.safetensors") {
    std::vector<checkpoint::NamedArray> arrays;
    for (const auto& [tensor, of] : tensors) {
      arrays.push_back({tensor, of.shape, ConstBufferOf(of.values)});
    }
    ASSERT_THAT(checkpoint::WriteSafetensors(PathOf(name), arrays, {{"format", "pt"}}), IsOk());
  }
  absl::StatusOr<ModelFiles> Open() { return ModelFiles::Open(directory_.path()); }
  absl::StatusOr<ModelFiles> OpenOf(const std::string& config, const Tensors& tensors) {
    WriteText("config.json", config);
    WriteTensors(tensors);
    return Open();
  }
  void ExpectRefused(const Tensors& tensors, const std::string& why) {
    EXPECT_THAT(OpenOf(kLlama, tensors),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }

  const TemporaryDirectory directory_;
};

// Elements of a parameter as our model has it.
Floats Read(const ModelFiles& files, const std::string& name, int64_t first = 0,
            int64_t count = -1) {
  const checkpoint::SlicedArrays& arrays = files.opened().manifest().model;
  if (count < 0) count = arrays.at(name).num_elements();
  Floats values(static_cast<size_t>(count));
  EXPECT_THAT(files.opened().Read(arrays, name, first, BufferOf(values)), IsOk());
  return values;
}

Floats Joined(const Tensors& tensors, const std::vector<std::string>& names) {
  Floats all;
  for (const std::string& name : names) {
    const Floats& values = tensors.at(name).values;
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_F(ModelFilesTest, FuseWhatALlamaHasApart) {
  const Tensors tensors = Llama();
  const auto files = OpenOf(kLlama, tensors);
  ASSERT_THAT(files, IsOk());
  EXPECT_EQ(files->type(), "llama");
  EXPECT_EQ(files->config().context, 16);
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  EXPECT_EQ(Read(*files, "h.0.attn.c_attn.weight"),
            Joined(tensors, {attention + "q_proj.weight", attention + "k_proj.weight",
                             attention + "v_proj.weight"}));
  EXPECT_EQ(Read(*files, "h.0.mlp.c_fc.weight"),
            Joined(tensors, {mlp + "gate_proj.weight", mlp + "up_proj.weight"}));
  EXPECT_EQ(Read(*files, "h.0.attn.c_proj.weight"), Joined(tensors, {attention + "o_proj.weight"}));
  EXPECT_EQ(Read(*files, "h.0.mlp.c_proj.weight"), Joined(tensors, {mlp + "down_proj.weight"}));
  EXPECT_EQ(Read(*files, "lm_head.weight"), Joined(tensors, {"lm_head.weight"}));
  EXPECT_EQ(Read(*files, "ln_f.weight"), Joined(tensors, {"model.norm.weight"}));
  int64_t elements = 0;
  for (const auto& [name, tensor] : tensors) elements += static_cast<int64_t>(tensor.values.size());
  EXPECT_EQ(files->num_bytes(), 4 * elements);
}

// The files of GPT-2 have a row for each input.
TEST_F(ModelFilesTest, TurnMatricesOfGpt2InAnyRange) {
  const Tensors tensors = Gpt2();
  const auto files = OpenOf(kGpt2, tensors);
  ASSERT_THAT(files, IsOk());
  const Floats& there = tensors.at("transformer.h.0.attn.c_attn.weight").values;
  Floats turned;
  for (int64_t output = 0; output < 24; ++output) {
    for (int64_t input = 0; input < 8; ++input) turned.push_back(there[input * 24 + output]);
  }
  const auto size = static_cast<int64_t>(turned.size());
  for (int64_t first = 0; first < size; first += 5) {
    for (int64_t end = first + 1; end <= size; end += 7) {
      EXPECT_EQ(Read(*files, "h.0.attn.c_attn.weight", first, end - first),
                Floats(turned.begin() + first, turned.begin() + end))
          << first << " " << end;
    }
  }
  EXPECT_EQ(Read(*files, "h.0.attn.c_attn.weight"), turned);
  EXPECT_EQ(Read(*files, "h.0.attn.c_attn.bias"),
            Joined(tensors, {"transformer.h.0.attn.c_attn.bias"}));
  EXPECT_EQ(Read(*files, "wpe.weight"), Joined(tensors, {"transformer.wpe.weight"}));
}

TEST_F(ModelFilesTest, TakeNamesWithoutThePrefixAndConstants) {
  Tensors tensors = Gpt2("");
  Add(tensors, "h.0.attn.bias", {1, 1, 16, 16});
  Add(tensors, "lm_head.weight", {10, 8});  // it is the table of embeddings
  EXPECT_THAT(OpenOf(kGpt2, tensors), IsOk());
  EXPECT_THAT(OpenOf(kLlama, Llama("")), IsOk());
}

TEST_F(ModelFilesTest, AreTheSameInShards) {
  const Tensors tensors = Llama();
  const auto whole = OpenOf(kLlama, tensors);
  ASSERT_THAT(whole, IsOk());
  std::filesystem::remove(PathOf("model.safetensors"));
  Tensors shards[2];
  std::string map;
  for (const auto& [name, tensor] : tensors) {
    const bool is_first = shards[0].size() < 5;
    shards[is_first ? 0 : 1][name] = tensor;
    absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", name, "\": \"model-0000", is_first ? 1 : 2,
                    "-of-00002.safetensors\"");
  }
  WriteTensors(shards[0], "model-00001-of-00002.safetensors");
  WriteTensors(shards[1], "model-00002-of-00002.safetensors");
  const auto index = [](const std::string& members) {
    return absl::StrCat("{\"metadata\": {\"total_size\": 1}, \"weight_map\": {", members, "}}");
  };
  WriteText("model.safetensors.index.json", index(map));
  const auto files = Open();
  ASSERT_THAT(files, IsOk());
  EXPECT_EQ(files->id(), whole->id());
  for (const auto& [name, array] : whole->opened().manifest().model) {
    EXPECT_EQ(Read(*files, name), Read(*whole, name)) << name;
  }

  const auto refused = [&](const std::string& text, const std::string& why) {
    WriteText("model.safetensors.index.json", text);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused(index(map + ", \"x\": \"../model.safetensors\""),
          "\"x\" is in ../model.safetensors; expected a file of safetensors beside the index");
  refused(index(map + ", \"x\": \"model-3.safetensors\""), "model-3.safetensors is missing");
  refused(index(map + ", \"x\": \"model-00002-of-00002.safetensors\""), "lacks \"x\"");
  refused(index(map + ", \"lm_head.weight\": \"model-00002-of-00002.safetensors\""),
          "model.safetensors.index.json");
  refused("{}", "the object weight_map is missing");
  refused(index(map.substr(map.find(", ") + 2)), "does not name");
}

TEST_F(ModelFilesTest, AreRefusedByTheTensorThatDoesNotFit) {
  Tensors tensors = Llama();
  tensors.erase("model.layers.0.self_attn.k_proj.weight");
  ExpectRefused(tensors, "has no tensor \"model.layers.0.self_attn.k_proj.weight\", which a llama");
  tensors = Llama();
  Add(tensors, "model.layers.1.input_layernorm.weight", {8});
  ExpectRefused(tensors,
                "holds \"model.layers.1.input_layernorm.weight\", which a llama of this "
                "config.json does not have");
  tensors = Llama();
  Add(tensors, "model.layers.0.mlp.up_proj.weight", {6, 7});
  ExpectRefused(tensors,
                "\"model.layers.0.mlp.up_proj.weight\" is [6, 7] there, and config.json "
                "makes it [6, 8]");
}

TEST_F(ModelFilesTest, AreRefusedByTheirTypes) {
  WriteText("config.json", kLlama);
  const Tensors tensors = Llama();
  const std::vector<int64_t> whole(100);
  const std::vector<uint16_t> half(100);
  const auto with = [&](const std::string& name, DType dtype) {
    std::vector<checkpoint::NamedArray> arrays;
    for (const auto& [tensor, of] : tensors) {
      ConstBuffer elements = ConstBufferOf(of.values);
      if (tensor == name) {
        elements = {dtype == DType::kI64 ? static_cast<const void*>(whole.data()) : half.data(),
                    elements.count, dtype};
      }
      arrays.push_back({tensor, of.shape, elements});
    }
    EXPECT_THAT(checkpoint::WriteSafetensors(PathOf("model.safetensors"), arrays, {}), IsOk());
    return Open();
  };
  EXPECT_THAT(with("model.norm.weight", DType::kI64),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"model.norm.weight\" is i64; expected f32, bf16 or f16")));
  EXPECT_THAT(with("model.norm.weight", DType::kBf16), IsOk());
  EXPECT_THAT(with("model.layers.0.self_attn.v_proj.weight", DType::kBf16),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected one type")));
}

TEST_F(ModelFilesTest, AreMissedByName) {
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               AllOf(HasSubstr("config.json"), HasSubstr("save_pretrained"))));
  WriteText("config.json", kLlama);
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has neither model.safetensors nor "
                                                              "model.safetensors.index.json")));
  WriteText("pytorch_model.bin", "");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("pytorch_model.bin is")));
  WriteTensors(Llama());
  const std::string path = PathOf("model.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
}

TEST_F(ModelFilesTest, HaveAnotherIdWithOtherWeights) {
  Tensors tensors = Llama();
  const auto first = OpenOf(kLlama, tensors);
  const auto same = OpenOf(kLlama, tensors);
  tensors.at("model.layers.0.mlp.up_proj.weight").values[24] += 1;
  const auto other = OpenOf(kLlama, tensors);
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(first->id(), same->id());
  EXPECT_NE(first->id(), other->id());
}

}  // namespace
}  // namespace muster
