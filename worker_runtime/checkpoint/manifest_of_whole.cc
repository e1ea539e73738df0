#include "worker_runtime/checkpoint/manifest_of_whole.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/header_reader.h"
#include "worker_runtime/checkpoint/manifest_json.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;
using Checksums = std::map<std::string, std::string>;  // hex digits, by array

constexpr char kStepKey[] = "step";  // of the metadata of both safetensors files

absl::Status CheckStep(const SafetensorsFile& file, int64_t step) {
  const auto found = file.metadata().find(kStepKey);
  if (found != file.metadata().end() && found->second == absl::StrCat(step)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), " is of step ", found == file.metadata().end() ? "?" : found->second, ", but ",
      kManifest, " beside it of step ", step, ": these files do not belong together"));
}

bool IsSha256(const std::string& text) {
  return text.size() == 2 * kDigestBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

// `beside` is a file of the same checkpoint.
absl::Status DamagedText(const SafetensorsFile& beside, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(ParentOf(beside.path()), "/", kManifest, " is damaged: ", why));
}

absl::StatusOr<SlicedArrays> ArraysOf(const SafetensorsFile& file, int64_t index,
                                      const Checksums& checksums, std::string& digests) {
  for (const auto& [name, checksum] : checksums) {
    if (file.arrays().contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is damaged: it lacks ", Quoted(name)));
  }
  SlicedArrays arrays;
  for (const auto& [name, info] : file.arrays()) {
    SlicedArray& array = arrays[name];
    array.dtype = info.dtype;
    array.shape = info.shape;
    if (info.bytes == 0) continue;
    array.pieces.push_back({.file = index,
                            .offset = info.offset,
                            .elements = info.bytes / static_cast<int64_t>(SizeOf(info.dtype)),
                            .first_digest = static_cast<int64_t>(digests.size()) / kDigestBytes});
    if (checksums.empty()) continue;
    const auto found = checksums.find(name);
    if (found != checksums.end() && IsSha256(found->second)) {
      digests += absl::HexStringToBytes(found->second);
      continue;
    }
    return DamagedText(file, absl::StrCat("it has no SHA-256 of ", Quoted(name)));
  }
  return arrays;
}

// What adapters that were saved beside such a model know it by.
std::string IdOf(const Checksums& checksums) {
  Sha256 hash;
  for (const auto& [name, checksum] : checksums) hash.Add(absl::StrCat(name, "=", checksum, "\n"));
  return hash.Finish();
}

struct WholeText {
  TrainingState state;
  Checksums of_model;
  Checksums of_optimizer;
};

absl::StatusOr<WholeText> ReadText(absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const Json json, ReadChecked(text));
  const auto version = json.find("version");
  if (version == json.end() || *version != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("it does not say \"format\": \"", kWholeFormat, "\" with \"version\": 1"));
  }
  WholeText read;
  MUSTER_ASSIGN_OR_RETURN(read.of_model, TextsIfAny(json, "model_sha256"));
  MUSTER_ASSIGN_OR_RETURN(read.of_optimizer, TextsIfAny(json, "optimizer_sha256"));
  if (!json.contains(kChecksum) && !read.of_model.empty()) {
    return absl::InvalidArgumentError("it has no checksum, and its arrays have some");
  }
  MUSTER_ASSIGN_OR_RETURN(read.state, ReadState(json));
  read.state.model_id = IdOf(read.of_model);
  return read;
}

}  // namespace

absl::StatusOr<Manifest> ManifestOfWhole(absl::string_view text, const SafetensorsFile& model,
                                         const SafetensorsFile& optimizer) {
  absl::StatusOr<WholeText> read = ReadText(text);
  if (!read.ok()) return DamagedText(model, read.status().message());
  Manifest manifest = {.state = std::move(read->state)};
  manifest.block_bytes = std::numeric_limits<int64_t>::max();  // a digest is of a whole array
  int64_t index = 0;
  for (const SafetensorsFile* file : {&model, &optimizer}) {
    MUSTER_RETURN_IF_ERROR(CheckStep(*file, manifest.state.step));
    const bool is_model = index == 0;
    MUSTER_ASSIGN_OR_RETURN(
        (is_model ? manifest.model : manifest.optimizer),
        ArraysOf(*file, index, is_model ? read->of_model : read->of_optimizer, manifest.digests));
    manifest.files.push_back({is_model ? kModel : kOptimizer, file->bytes()});
    ++index;
  }
  int64_t pieces = 0;
  for (const SlicedArrays* arrays : {&manifest.model, &manifest.optimizer}) {
    for (const auto& [name, array] : *arrays) pieces += static_cast<int64_t>(array.pieces.size());
  }
  if (manifest.digests.empty() || manifest.NumDigests() == pieces) return manifest;
  return DamagedText(model, "it has a SHA-256 of some arrays and none of others");
}

}  // namespace muster::checkpoint
