#include "worker_runtime/models/export_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/buffer.h"
#include "muster/model_files.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/checkpoint/slice_file.h"

namespace muster::models {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::kSourceDirectory;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ModelAt(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/data/models/", name);
}

std::string BytesOf(const checkpoint::Checkpoint& from, const std::string& name) {
  const checkpoint::SlicedArray& array = from.manifest().model.at(name);
  std::string bytes(static_cast<size_t>(array.num_elements()) * SizeOf(array.dtype), '\0');
  EXPECT_THAT(
      from.Read(from.manifest().model, name, 0, {bytes.data(), array.num_elements(), array.dtype}),
      IsOk());
  return bytes;
}

// A checkpoint of the arrays of a model of tests/data/models, of the files' types.
checkpoint::Checkpoint Saved(const std::string& model, const std::string& place,
                             std::map<std::string, std::string> metadata) {
  const auto files = ModelFiles::Open(ModelAt(model));
  EXPECT_THAT(files, IsOk());
  const checkpoint::TrainingState state = {.step = 1, .metadata = std::move(metadata)};
  auto made = checkpoint::NewCheckpoint::Begin(place, state);
  EXPECT_THAT(made, IsOk());
  std::vector<checkpoint::ArrayToWrite> arrays;
  std::vector<checkpoint::Slice> slices;
  for (const auto& [name, array] : files->opened().manifest().model) {
    slices.push_back({.array = arrays.size(), .elements = array.num_elements()});
    arrays.push_back({name, array.dtype, array.shape});
  }
  std::string bytes;
  const auto file = checkpoint::WriteSlices(
      made->hidden(), "slices_00000.safetensors", arrays, slices,
      [&](size_t array, int64_t first, int64_t count) -> absl::StatusOr<absl::string_view> {
        bytes = BytesOf(files->opened(), arrays[array].name);
        const size_t width = SizeOf(arrays[array].dtype);
        return absl::string_view(bytes).substr(first * width, count * width);
      });
  EXPECT_THAT(file, IsOk());
  EXPECT_THAT(made->Publish(*checkpoint::ManifestOf(state, arrays, {*file})), IsOk());
  return *checkpoint::Checkpoint::Open(place);
}

std::map<std::string, std::string> MetadataOf(const std::string& model, const char* dtype) {
  return {{"config", ReadFile(ModelAt(model) + "/config.json")}, {"dtype", dtype}};
}

class Exported : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  const TemporaryDirectory directory_;
};

TEST_P(Exported, ModelsHaveTheTensorsThatTransformersWrote) {
  const auto& [model, dtype] = GetParam();
  const auto saved = Saved(model, directory_.File("step_00000001"), MetadataOf(model, dtype));
  const std::string out = directory_.File("out");
  ASSERT_THAT(ExportModel(saved, out, std::nullopt), IsOk());
  const auto ours = checkpoint::SafetensorsFile::Open(out + "/model.safetensors");
  const auto theirs = ModelFiles::Open(ModelAt(model));
  ASSERT_THAT(ours, IsOk());
  const auto back = ModelFiles::Open(out);
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->type(), theirs->type());
  EXPECT_EQ(back->config(), theirs->config());
  for (const auto& [name, array] : theirs->opened().manifest().model) {
    EXPECT_EQ(BytesOf(back->opened(), name), BytesOf(theirs->opened(), name)) << name;
  }
  if (!muster::testing::FileExists(ModelAt(model) + "/model.safetensors")) return;
  const auto file = checkpoint::SafetensorsFile::Open(ModelAt(model) + "/model.safetensors");
  for (const auto& [name, info] : file->arrays()) {
    ASSERT_TRUE(ours->arrays().contains(name)) << name;
    EXPECT_EQ(ours->arrays().at(name).shape, info.shape) << name;
    EXPECT_EQ(ours->arrays().at(name).dtype, info.dtype) << name;
  }
  EXPECT_EQ(ours->arrays().size(), file->arrays().size());
}

INSTANTIATE_TEST_SUITE_P(Models, Exported,
                         ::testing::Values(std::pair("gpt2", "f32"), std::pair("llama2", "f32"),
                                           std::pair("llama3", "bf16"), std::pair("mistral", "f16"),
                                           std::pair("qwen2", "f32"), std::pair("qwen3", "f32"),
                                           std::pair("granite", "bf16")),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(ExportModel, RoundsToTheTypeThatIsAskedForAndSaysSo) {
  const TemporaryDirectory directory;
  const auto saved = Saved("qwen2", directory.File("step_00000001"), MetadataOf("qwen2", "f32"));
  const std::string out = directory.File("out");
  ASSERT_THAT(ExportModel(saved, out, DType::kBf16), IsOk());
  WriteFile(out + "/tokenizer.json", "{}");
  ASSERT_THAT(ExportModel(saved, out, DType::kBf16), IsOk()) << "again";
  EXPECT_THAT(FilesBelow(out), ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_THAT(ReadFile(out + "/config.json"), HasSubstr("\"dtype\": \"bfloat16\""));
  const auto back = ModelFiles::Open(out);
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->opened().manifest().model.at("wte.weight").dtype, DType::kBf16);
}

TEST(ExportModel, RefusesWhatIsNoModelAndPlacesThatAreTaken) {
  const TemporaryDirectory directory;
  const std::string place = directory.File("step_00000001");
  const auto unnamed = Saved("qwen3", place, {});
  EXPECT_THAT(ExportModel(unnamed, directory.File("out"), std::nullopt),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("does not say which model it is of")));
  const auto saved = Saved("qwen3", place, MetadataOf("qwen3", "f32"));
  EXPECT_THAT(ExportModel(saved, place, std::nullopt),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it holds training.json")));
  const auto another = Saved("qwen3", directory.File("another"), MetadataOf("qwen2", "f32"));
  EXPECT_THAT(
      ExportModel(another, directory.File("out"), std::nullopt),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no h.0.attn.c_attn.bias")));
  std::string bytes = ReadFile(place + "/slices_00000.safetensors");
  bytes.back() = static_cast<char>(~bytes.back());
  WriteFile(place + "/slices_00000.safetensors", bytes);
  EXPECT_THAT(
      ExportModel(*checkpoint::Checkpoint::Open(place), directory.File("out"), std::nullopt),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("slices_00000")));
  EXPECT_FALSE(testing::FileExists(directory.File("out/config.json")));
}

}  // namespace
}  // namespace muster::models
