// Training that begins with the weights of transformers' files (tests/data/models).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/sliced_training.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainModel : public SlicedTraining {
 protected:
  static std::string ModelAt(const std::string& name) {
    return absl::StrCat(kSourceDirectory, "/tests/data/models/", name);
  }
  // A training on `ranks`, of which each stage has as many as there are replicas.
  Arguments Job(int ranks, const Arguments& more, int stages = 1) const {
    return Arguments{"run",
                     absl::StrCat("--nproc_per_node=", ranks),
                     MusterTrainBinary(),
                     "--data",
                     absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                     "--mode=ordered",
                     "--context=16",
                     "--batch-size=1",
                     "--sample_tokens=0",
                     "--hash",
                     absl::StrCat("--accumulation=", kMicroBatches * stages / ranks)} +
           more;
  }
};

TEST_F(TrainModel, HasTheSameBitsOnAnyNumberOfRanks) {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    const Arguments model = {"--model", ModelAt(name), "--steps=3"};
    const std::string alone = HashOf(Job(1, model));
    EXPECT_EQ(HashOf(Job(2, model + Arguments{"--plan=zero-3"})), alone) << name;
    EXPECT_EQ(HashOf(Job(4, model + Arguments{"--plan=zero-2"})), alone) << name;
    EXPECT_EQ(HashOf(Job(2, model + Arguments{"--stages=2"}, 2)), alone) << name;
  }
}

TEST_F(TrainModel, BeginsWithTheWeightsAndGoesOnFromCheckpoints) {
  const Arguments model = {"--model", ModelAt("llama3")};
  const std::string whole = HashOf(Job(1, model + Arguments{"--steps=4"}));
  const Arguments saving = {"--save", Out("saved"), "--resume", Out("saved")};
  const SubprocessResult first =
      Start(Job(2, model + saving + Arguments{"--steps=2", "--plan=zero-3"})).Wait(kLong);
  EXPECT_THAT(first, ExitsWith(0));
  EXPECT_THAT(first.out, HasSubstr(absl::StrCat(ModelAt("llama3"), ", a llama of ")));
  const SubprocessResult second =
      Start(Job(2, model + saving + Arguments{"--steps=4"})).Wait(kLong);
  EXPECT_THAT(second, ExitsWith(0));
  EXPECT_THAT(second.out,
              AllOf(HasSubstr(", after step 2"), HasSubstr(whole), Not(HasSubstr("a llama of"))));
}

// Each tensor rank takes its part of every matrix, whichever way it lies in the files; what they
// save is exported whole.
TEST_F(TrainModel, IsSharedByTensorRanks) {
  const Arguments tensor = {"--mesh=tp=2"};
  for (const char* name : {"gpt2", "llama3", "qwen2", "granite"}) {
    const Arguments model = {"--model", ModelAt(name)};
    const std::string loaded = HashOf(Job(1, model + Arguments{"--steps=0"}));
    EXPECT_EQ(HashOf(Job(2, model + tensor + Arguments{"--steps=0"}, 2)), loaded) << name;
    const std::string saved = Out(name), exported = absl::StrCat(saved, "_exported");
    const std::string trained =
        HashOf(Job(2, model + tensor + Arguments{"--steps=2", "--save", saved}, 2));
    EXPECT_THAT(Run({"export", "--form=transformers", saved, exported}), ExitsWith(0));
    EXPECT_EQ(HashOf(Job(1, {"--model", exported, "--steps=0"})), trained) << name;
  }
}

TEST_F(TrainModel, LiesBeneathAdaptersThatKnowIt) {
  const Arguments adapters = {"--lora=2", "--save", Out("adapters"), "--resume", Out("adapters")};
  const Arguments over = adapters + Arguments{"--model", ModelAt("llama3")};
  HashOf(Job(2, over + Arguments{"--steps=2", "--plan=zero-2"}));
  HashOf(Job(1, over + Arguments{"--steps=3"}));
  namespace fs = std::filesystem;
  fs::create_directory(Out("other"));
  for (const auto& entry : fs::directory_iterator(ModelAt("llama3"))) {
    fs::copy(entry.path(), Out("other"));
  }
  std::string weights = ReadFile(Out("other/model.safetensors"));
  for (size_t i = weights.size() - 1; i > weights.size() / 2; i -= 2) weights[i] ^= 1;
  WriteFile(Out("other/model.safetensors"), weights);
  const SubprocessResult refused =
      Run(Job(1, adapters + Arguments{"--model", Out("other"), "--steps=4"}));
  EXPECT_THAT(refused, ExitsWith(2));
  EXPECT_THAT(refused.err, HasSubstr("holds adapters of another model"));
}

// A model that was trained from nothing, too.
TEST_F(TrainModel, GoesOutAsTransformersLoadsItAndComesBack) {
  const auto comes_back = [&](const std::string& name, const Arguments& model) {
    const std::string saved = Out(name), exported = Out(name + "_exported");
    const std::string hash =
        HashOf(Job(2, model + Arguments{"--steps=2", "--plan=zero-3", "--save", saved}));
    const SubprocessResult result = Run({"export", "--form=transformers", saved, exported});
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr("exported the model of " + saved));
    EXPECT_THAT(FilesBelow(exported), ElementsAre("config.json", "model.safetensors"));
    EXPECT_EQ(HashOf(Job(1, {"--model", exported, "--steps=0"})), hash) << name;
  };
  comes_back("gpt2", {"--model", ModelAt("gpt2")});
  comes_back("qwen2", {"--model", ModelAt("qwen2")});
  comes_back("drawn", {"--layers=2", "--heads=2", "--width=32"});
  comes_back("small", {"--model=llama-3.2-1b", "--layers=1", "--heads=4", "--kv_heads=2",
                       "--width=32", "--mlp_size=48"});

  const SubprocessResult refused = Run({"export", "--dtype=bf16", Out("gpt2"), Out("x")});
  EXPECT_THAT(refused, ExitsWith(2));
  EXPECT_THAT(refused.err, HasSubstr("--dtype goes with --form=transformers"));
  HashOf(Job(1, {"--model", ModelAt("gpt2"), "--lora=2", "--steps=1", "--save", Out("lora")}));
  const SubprocessResult adapters =
      Run({"export", "--form=transformers", Out("lora"), Out("lora_exported")});
  EXPECT_THAT(adapters, ExitsWith(1));
  EXPECT_THAT(adapters.err, HasSubstr("a checkpoint holds the adapters alone"));
}

TEST_F(TrainModel, IsRefusedInOneSentence) {
  const auto refused = [&](const Arguments& more, const std::string& why) {
    const SubprocessResult result = Run(Job(1, more + Arguments{"--steps=1"}));
    EXPECT_THAT(result, ExitsWith(2)) << why;
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  refused({"--model", Out("nowhere")}, "is not a known model");
  refused({"--model", ModelAt("llama2"), "--num_layers=3"}, "says of itself how large it is");
  refused({"--model", ModelAt("llama2"), "--context=65"}, "must be at most 64");
  refused({"--model", ModelAt("llama2"), "--lora=2", "--base", Out("base")},
          "both name the model beneath the adapters");
  std::filesystem::create_directory(Out("words"));
  std::string config = ReadFile(ModelAt("llama2") + "/config.json");
  config.replace(config.find("\"vocab_size\": 256"), 17, "\"vocab_size\": 300");
  WriteFile(Out("words/config.json"), config);
  refused({"--model", Out("words")}, "has neither model.safetensors nor");
  std::filesystem::copy(ModelAt("llama2") + "/model.safetensors", Out("words"));
  refused({"--model", Out("words")},
          "\"model.embed_tokens.weight\" is [256, 16] there, and config.json makes it [300, 16]");
}

// Ids of GPT-2's tokenizer mean other words to this model.
TEST_F(TrainModel, IsNotFedTheTokensOfAnotherTokenizer) {
  std::string tokens(1024 + 2 * 64, '\0');
  const uint32_t header[] = {20240520, 1, 64};
  std::memcpy(tokens.data(), header, sizeof(header));
  WriteFile(Out("gpt2.bin"), tokens);
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=1", MusterTrainBinary(), "--data", Out("gpt2.bin"), "--model",
           ModelAt("llama2"), "--context=16", "--steps=1"});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("was trained on 256: give files of tokens"));
}

TEST_F(TrainModel, IsPlannedByItsConfiguration) {
  const SubprocessResult plan =
      Run({"plan", "--world_size=2", "--plan=zero-3", "--context=16", "--model", ModelAt("qwen2")});
  EXPECT_THAT(plan, ExitsWith(0));
  EXPECT_THAT(plan.out, HasSubstr("4 heads with 2 of keys"));
}

}  // namespace
}  // namespace muster::testing
