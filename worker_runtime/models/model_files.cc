// What a directory holds, by its configuration, index and headers, as a manifest of our parameters.
#include "muster/model_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "muster/buffer.h"
#include "muster/decoder.h"
#include "muster/dtype.h"
#include "muster/parameter.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/config_tree.h"
#include "proto/config/json_text.h"
#include "proto/io/read_file.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/header_reader.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/models/tensor_names.h"
#include "worker_runtime/options/model_config.h"

namespace muster {
namespace {

using checkpoint::Quoted;
using checkpoint::SafetensorsFile;

constexpr char kOneFile[] = "model.safetensors";
using models::kIndex;

constexpr char kPickled[] = "pytorch_model.bin";
constexpr int64_t kSampleElements = 256;

template <typename... What>
absl::Status Refuse(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

// The tensors of all files together.
struct TensorFiles {
  struct Tensor {
    int64_t file = 0;
    checkpoint::ArrayInfo info;
  };
  std::vector<checkpoint::ManifestFile> files;
  std::map<std::string, Tensor> tensors;

  void Add(const std::string& name, const SafetensorsFile& file) {
    const auto index = static_cast<int64_t>(files.size());
    files.push_back({name, file.bytes()});
    for (const auto& [tensor, info] : file.arrays()) tensors[tensor] = {index, info};
  }
};

// The file of each tensor, as the index has it.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Refuse(path, " ", text.status().message());
  const absl::StatusOr<ConfigNode> root = ReadJson(*text);
  if (!root.ok()) return Refuse(path, ": ", root.status().message());
  const ConfigNode* const map = root->Find("weight_map");
  if (map == nullptr || map->kind != ConfigNode::Kind::kMap) {
    return Refuse(path, ": the object weight_map is missing");
  }
  WeightMap files;
  for (const auto& [tensor, file] : map->members) {
    if (file.kind != ConfigNode::Kind::kText || absl::StrContains(file.text, '/') ||
        !absl::EndsWith(file.text, ".safetensors")) {
      return Refuse(path, ":", file.line, ": ", Quoted(tensor), " is in ", ShownValue(file),
                    "; expected a file of safetensors beside the index");
    }
    files[tensor] = file.text;
  }
  return files;
}

absl::StatusOr<TensorFiles> OpenIndexed(const std::string& directory, const std::string& index) {
  MUSTER_ASSIGN_OR_RETURN(const WeightMap files, ReadIndex(index));
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  TensorFiles shards;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory, "/", name);
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return Refuse(path, " is missing, and ", kIndex, " names it");
    }
    MUSTER_RETURN_IF_ERROR(file.status());
    for (const auto& [tensor, info] : file->arrays()) {
      const auto found = files.find(tensor);
      if (found != files.end() && found->second == name) continue;
      return Refuse(path, " holds ", Quoted(tensor), ", which ", kIndex,
                    found == files.end() ? " does not name" : " has in another file");
    }
    shards.Add(name, *file);
  }
  for (const auto& [tensor, file] : files) {
    if (shards.tensors.contains(tensor)) continue;
    return Refuse(directory, "/", file, " lacks ", Quoted(tensor), ", which ", kIndex,
                  " has there");
  }
  return shards;
}

absl::StatusOr<TensorFiles> OpenTensorFiles(const std::string& directory) {
  const absl::StatusOr<SafetensorsFile> one =
      SafetensorsFile::Open(absl::StrCat(directory, "/", kOneFile));
  if (one.ok()) {
    TensorFiles shards;
    shards.Add(kOneFile, *one);
    return shards;
  }
  if (!absl::IsNotFound(one.status())) return one.status();
  const std::vector<std::string> names = NamesIn(directory);
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (has(kIndex)) return OpenIndexed(directory, absl::StrCat(directory, "/", kIndex));
  return absl::NotFoundError(absl::StrCat(
      directory, " has neither ", kOneFile, " nor ", kIndex,
      has(kPickled) ? absl::StrCat("; ", kPickled,
                                   " is a program of Python's and is not read: load it in "
                                   "transformers, and save it by save_pretrained")
                    : ""));
}

std::string Describe(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Finds each parameter in the files.
class Mapping {
 public:
  Mapping(const std::string& directory, const plan::ModelConfig& config, const TensorFiles& shards)
      : directory_(directory), config_(config), shards_(shards) {
    const absl::string_view prefix = models::PrefixOf(config.type);
    const bool has_prefix =
        std::any_of(shards.tensors.begin(), shards.tensors.end(),
                    [&](const auto& tensor) { return absl::StartsWith(tensor.first, prefix); });
    if (has_prefix) prefix_ = std::string(prefix);
  }

  absl::StatusOr<checkpoint::SlicedArrays> Run() {
    ParameterStore store;
    MUSTER_RETURN_IF_ERROR(Decoder::Create(config_.decoder, store).status());
    checkpoint::SlicedArrays arrays;
    for (const auto& parameter : store.parameters()) {
      MUSTER_ASSIGN_OR_RETURN(arrays[parameter->name()], ArrayOf(*parameter));
    }
    for (const auto& [name, tensor] : shards_.tensors) {
      if (used_.contains(name) || models::IsNoParameter(name, config_.decoder)) continue;
      return Refuse(PathOf(tensor), " holds ", Quoted(name), ", which a ", config_.type,
                    " of this config.json does not have");
    }
    return arrays;
  }

 private:
  std::string PathOf(const TensorFiles::Tensor& tensor) const {
    return absl::StrCat(directory_, "/", shards_.files[tensor.file].name);
  }

  absl::StatusOr<checkpoint::SlicedArray> ArrayOf(const Parameter& parameter) {
    models::ParameterSource source =
        models::SourceOf(config_.type, config_.decoder, parameter.name(), parameter.shape());
    if (source.tensors.empty()) {
      return absl::InternalError(absl::StrCat("no tensor is known for ", parameter.name()));
    }
    checkpoint::SlicedArray array = {.is_transposed = source.is_transposed};
    for (int i = 0; i < parameter.shape().rank(); ++i) array.shape.push_back(parameter.shape()[i]);
    for (models::FileTensor& wanted : source.tensors) {
      if (!absl::StartsWith(wanted.name, models::kHead)) wanted.name = prefix_ + wanted.name;
      MUSTER_ASSIGN_OR_RETURN(const TensorFiles::Tensor* const found, Find(wanted));
      if (array.pieces.empty()) array.dtype = found->info.dtype;
      if (found->info.dtype != array.dtype) {
        return Refuse(PathOf(*found), ": ", Quoted(wanted.name), " is ",
                      ToString(found->info.dtype), ", and ", Quoted(source.tensors[0].name), " is ",
                      ToString(array.dtype), "; expected one type for both");
      }
      array.pieces.push_back(
          {.file = found->file,
           .offset = found->info.offset,
           .elements = found->info.bytes / static_cast<int64_t>(SizeOf(array.dtype))});
    }
    return array;
  }

  absl::StatusOr<const TensorFiles::Tensor*> Find(const models::FileTensor& wanted) {
    const auto found = shards_.tensors.find(wanted.name);
    if (found == shards_.tensors.end()) {
      std::vector<std::string> names;
      for (const auto& [name, tensor] : shards_.tensors) names.push_back(name);
      return Refuse(directory_, " has no tensor ", Quoted(wanted.name), ", which a ", config_.type,
                    " of this config.json needs", DidYouMean(wanted.name, names));
    }
    used_.insert(wanted.name);
    const TensorFiles::Tensor& tensor = found->second;
    if (tensor.info.shape != wanted.shape) {
      return Refuse(PathOf(tensor), ": ", Quoted(wanted.name), " is ", Describe(tensor.info.shape),
                    " there, and config.json makes it ", Describe(wanted.shape));
    }
    const DType dtype = tensor.info.dtype;
    if (dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16) return &tensor;
    return Refuse(PathOf(tensor), ": ", Quoted(wanted.name), " is ", ToString(dtype),
                  "; expected f32, bf16 or f16");
  }

  const std::string& directory_;
  const plan::ModelConfig& config_;
  const TensorFiles& shards_;
  std::string prefix_;
  std::set<std::string> used_;
};

// Some elements from the middle of each array.
absl::StatusOr<std::string> IdOf(const std::string& config, const checkpoint::Checkpoint& opened) {
  Sha256 hash;
  hash.Add(config);
  for (const auto& [name, array] : opened.manifest().model) {
    hash.Add(absl::StrCat("\n", name, " ", ToString(array.dtype), " ", Describe(array.shape), " "));
    const int64_t elements = array.num_elements();
    const int64_t count = std::min(elements, kSampleElements);
    std::string bytes(static_cast<size_t>(count) * SizeOf(array.dtype), '\0');
    const Buffer buffer = {.data = bytes.data(), .count = count, .dtype = array.dtype};
    MUSTER_RETURN_IF_ERROR(
        opened.Read(opened.manifest().model, name, (elements - count) / 2, buffer));
    hash.Add(bytes);
  }
  return hash.Finish();
}

}  // namespace

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::string& directory) {
  const std::string config_path = absl::StrCat(directory, "/config.json");
  const absl::StatusOr<std::string> text = ReadFile(config_path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(config_path, " ", text.status().message(),
                     "; expected a directory as save_pretrained of transformers writes it"));
  }
  MUSTER_RETURN_IF_ERROR(text.status());
  MUSTER_ASSIGN_OR_RETURN(const plan::ModelConfig config,
                          plan::ReadModelConfig(config_path, *text));
  MUSTER_ASSIGN_OR_RETURN(const TensorFiles shards, OpenTensorFiles(directory));
  checkpoint::Manifest manifest = {.files = shards.files};
  MUSTER_ASSIGN_OR_RETURN(manifest.model, Mapping(directory, config, shards).Run());
  ModelFiles files;
  files.directory_ = directory;
  files.type_ = config.type;
  files.config_ = config.decoder;
  for (const auto& [name, array] : manifest.model) {
    files.num_bytes_ += array.num_elements() * static_cast<int64_t>(SizeOf(array.dtype));
  }
  MUSTER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened,
                          checkpoint::Checkpoint::OfFiles(directory, std::move(manifest)));
  MUSTER_ASSIGN_OR_RETURN(files.id_, IdOf(*text, opened));
  files.opened_ = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  return files;
}

}  // namespace muster
