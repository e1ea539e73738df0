#include "tests/support/whole_checkpoint_files.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using Json = nlohmann::json;
using checkpoint::NamedArray;

std::map<std::string, std::string> ChecksumsOf(const std::vector<NamedArray>& arrays) {
  std::map<std::string, std::string> checksums;
  for (const NamedArray& array : arrays) {
    const size_t bytes = static_cast<size_t>(array.elements.count) * SizeOf(array.elements.dtype);
    checksums[array.name] = Sha256().Add(array.elements.data, bytes).Finish();
  }
  return checksums;
}

// The text of training.json.
std::string TrainingText(const WholeCheckpointFiles& files) {
  const checkpoint::TrainingState& state = files.state;
  nlohmann::ordered_json json = {{"format", "muster.whole_checkpoint"},
                                 {"version", 1},
                                 {"step", state.step},
                                 {"plan", state.plan},
                                 {"counters", state.counters},
                                 {"metadata", state.metadata}};
  if (state.written_by.instance != 0) {
    json["written_by"] = {{"instance", absl::StrCat(state.written_by.instance)},
                          {"round", absl::StrCat(state.written_by.round)}};
  }
  if (files.has_checksums) {
    if (!files.model.empty()) json["model_sha256"] = ChecksumsOf(files.model);
    if (!files.optimizer.empty()) json["optimizer_sha256"] = ChecksumsOf(files.optimizer);
    // The keys are sorted in what is summed, and not in the file.
    json["sha256"] = Sha256().Add(Json::parse(json.dump()).dump()).Finish();
  }
  return json.dump(2) + "\n";
}

}  // namespace

std::string WriteWholeCheckpoint(const std::string& directory, const WholeCheckpointFiles& files) {
  const std::string path =
      absl::StrCat(directory, "/", absl::StrFormat("step_%08d", files.state.step));
  std::filesystem::create_directories(path);
  const std::map<std::string, std::string> metadata = {{"step", absl::StrCat(files.state.step)}};
  const auto write = [&](const char* name, const std::vector<NamedArray>& arrays) {
    MUSTER_CHECK(
        checkpoint::WriteSafetensors(absl::StrCat(path, "/", name), arrays, metadata).ok());
  };
  write("model.safetensors", files.model);
  write("optimizer.safetensors", files.optimizer);
  WriteFile(absl::StrCat(path, "/training.json"), TrainingText(files));
  return path;
}

}  // namespace muster::testing
