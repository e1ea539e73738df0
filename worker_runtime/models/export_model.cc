#include "worker_runtime/models/export_model.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/buffer.h"
#include "muster/decoder.h"
#include "muster/parameter.h"
#include "muster/sixteen_bits.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/models/tensor_names.h"
#include "worker_runtime/options/model_config.h"

namespace muster::models {
namespace {

using Json = nlohmann::ordered_json;  // which keeps the order of the members

constexpr absl::string_view kTypes[] = {"float32", "bfloat16", "float16"};

template <typename... What>
absl::Status Refuse(const checkpoint::Checkpoint& from, const What&... what) {
  return absl::FailedPreconditionError(absl::StrCat(from.path(), " ", what...));
}

absl::StatusOr<std::string> ConfigOf(const checkpoint::Checkpoint& from) {
  const auto& metadata = from.state().metadata;
  const auto found = metadata.find(plan::kModelConfigKey);
  if (found != metadata.end()) return found->second;
  return Refuse(from, "does not say which model it is of, as checkpoints of muster-train do");
}

// What it was trained in.
DType TypeOf(const checkpoint::Checkpoint& from) {
  const auto found = from.state().metadata.find("dtype");
  const std::string name = found == from.state().metadata.end() ? "" : found->second;
  return name == ToString(DType::kBf16)  ? DType::kBf16
         : name == ToString(DType::kF16) ? DType::kF16
                                         : DType::kF32;
}

// A tensor of the file, as rows of a parameter.
struct ParameterRows {
  std::string parameter;
  int64_t first = 0;  // element
  bool is_transposed = false;
  std::vector<int64_t> shape;  // in the file
};

// Gives the bytes of tensors, one after the other.
class Tensors {
 public:
  Tensors(const checkpoint::Checkpoint& from, DType dtype) : from_(from), dtype_(dtype) {}

  absl::Status Add(const plan::ModelConfig& config) {
    ParameterStore store;
    MUSTER_RETURN_IF_ERROR(Decoder::Create(config.decoder, store).status());
    for (const auto& parameter : store.parameters()) {
      if (!from_.manifest().model.contains(parameter->name())) {
        return Refuse(from_, "has no ", parameter->name(),
                      ": of a model with adapters, a checkpoint holds the adapters alone");
      }
      const ParameterSource source =
          SourceOf(config.type, config.decoder, parameter->name(), parameter->shape());
      int64_t first = 0;
      for (const FileTensor& tensor : source.tensors) {
        const bool is_head = absl::StartsWith(tensor.name, kHead);
        int64_t count = 1;
        for (const int64_t size : tensor.shape) count *= size;
        arrays_.push_back({is_head ? tensor.name : absl::StrCat(PrefixOf(config.type), tensor.name),
                           tensor.shape, ConstBuffer(nullptr, count, dtype_)});
        parts_.push_back({parameter->name(), first, source.is_transposed, tensor.shape});
        first += count;
      }
    }
    return absl::OkStatus();
  }

  const std::vector<checkpoint::NamedArray>& arrays() const { return arrays_; }

  // What checkpoint::ArrayBytes gives.
  absl::StatusOr<absl::string_view> Bytes(size_t index, int64_t first_byte, int64_t bytes) {
    const auto width = static_cast<int64_t>(SizeOf(dtype_));
    const ParameterRows& part = parts_[index];
    const int64_t first = first_byte / width;
    const int64_t count = bytes / width;
    if (part.is_transposed) {
      if (first == 0) MUSTER_RETURN_IF_ERROR(ReadTurned(part));
      return Narrowed(turned_.data() + first, count);
    }
    MUSTER_RETURN_IF_ERROR(Read(part.parameter, part.first + first, count, values_));
    return Narrowed(values_.data(), count);
  }

  const absl::Status& damage() const { return damage_; }  // of the checkpoint

 private:
  absl::Status Read(const std::string& parameter, int64_t first, int64_t count,
                    std::vector<float>& out) {
    const auto& arrays = from_.manifest().model;
    const DType stored = arrays.at(parameter).dtype;
    out.resize(static_cast<size_t>(count));
    std::vector<uint16_t> narrow;
    Buffer to = {.data = out.data(), .count = count, .dtype = stored};
    if (SizeOf(stored) == 2) {
      narrow.resize(out.size());
      to.data = narrow.data();
    } else if (stored != DType::kF32) {
      return Refuse(from_, "holds ", parameter, " as ", ToString(stored),
                    "; expected f32, bf16 or f16");
    }
    damage_ = from_.Read(arrays, parameter, first, to);
    MUSTER_RETURN_IF_ERROR(damage_);
    for (size_t i = 0; i < narrow.size(); ++i) {
      out[i] = stored == DType::kBf16 ? FromBf16(narrow[i]) : FromF16(narrow[i]);
    }
    return absl::OkStatus();
  }

  absl::Status ReadTurned(const ParameterRows& part) {
    const int64_t rows = part.shape[0], columns = part.shape[1];
    MUSTER_RETURN_IF_ERROR(Read(part.parameter, 0, rows * columns, values_));
    turned_.resize(values_.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        turned_[row * columns + column] = values_[column * rows + row];
      }
    }
    return absl::OkStatus();
  }

  absl::string_view Narrowed(const float* values, int64_t count) {
    if (dtype_ == DType::kF32) {
      return {reinterpret_cast<const char*>(values), static_cast<size_t>(count) * sizeof(float)};
    }
    narrow_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      narrow_[i] = dtype_ == DType::kBf16 ? ToBf16(values[i]) : ToF16(values[i]);
    }
    return {reinterpret_cast<const char*>(narrow_.data()), narrow_.size() * sizeof(uint16_t)};
  }

  const checkpoint::Checkpoint& from_;
  const DType dtype_;
  std::vector<checkpoint::NamedArray> arrays_;
  std::vector<ParameterRows> parts_;
  std::vector<float> values_;
  std::vector<float> turned_;
  std::vector<uint16_t> narrow_;
  absl::Status damage_;
};

absl::Status CheckDirectory(const std::string& directory) {
  const auto names = checkpoint::ListDirectory(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (name == checkpoint::kManifest || name == kIndex) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot write a model into ", directory, ": it holds ", name,
                       ", which is of another; give another directory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportModel(const checkpoint::Checkpoint& from, const std::string& directory,
                         std::optional<DType> dtype) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ConfigOf(from));
  const absl::StatusOr<plan::ModelConfig> config = plan::ReadModelConfig("config", text);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.ok() || json.is_discarded()) {
    return Refuse(from, "has a config that cannot be read: ", config.status().message());
  }
  MUSTER_RETURN_IF_ERROR(CheckDirectory(directory));
  const DType type = dtype.value_or(TypeOf(from));
  Tensors tensors(from, type);
  MUSTER_RETURN_IF_ERROR(tensors.Add(*config));
  MUSTER_RETURN_IF_ERROR(checkpoint::CreateDirectories(directory));
  const auto bytes_of = [&](size_t array, int64_t first, int64_t count) {
    return tensors.Bytes(array, first, count);
  };
  const absl::Status written =
      checkpoint::WriteSafetensors(absl::StrCat(directory, "/", checkpoint::kModel),
                                   tensors.arrays(), {{"format", "pt"}}, bytes_of)
          .status();
  MUSTER_RETURN_IF_ERROR(tensors.damage());
  if (absl::IsInvalidArgument(written)) return absl::FailedPreconditionError(written.message());
  MUSTER_RETURN_IF_ERROR(written);
  // Transformers 4 reads the one, 5 the other.
  const char* const key = json.contains("dtype") ? "dtype" : "torch_dtype";
  json[key] = kTypes[type == DType::kF32 ? 0 : type == DType::kBf16 ? 1 : 2];
  return checkpoint::WriteDurably(directory + "/config.json", json.dump(2) + "\n");
}

}  // namespace muster::models
