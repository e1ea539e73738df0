#include "worker_runtime/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/header_reader.h"
#include "worker_runtime/checkpoint/manifest_json.h"
#include "worker_runtime/checkpoint/manifest_of_whole.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "muster.checkpoint";
// Arrays in parts came with version 3, and what has none is still written as version 2.
constexpr int64_t kVersion = 2;
constexpr int64_t kVersionOfParts = 3;
constexpr int64_t kPartsMax = int64_t{1} << 20;

absl::Status Wrong(absl::string_view array, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("of ", Quoted(array), " it says ", what));
}

Json ToJson(const SlicedArrays& arrays) {
  Json all = Json::object();
  for (const auto& [name, array] : arrays) {
    Json pieces = Json::array();
    for (const Piece& piece : array.pieces) {
      pieces.push_back({piece.file, piece.offset, piece.elements});
    }
    all[name] = {{"dtype", NameOf(array.dtype)}, {"shape", array.shape}, {"pieces", pieces}};
    if (!array.parts) continue;
    const auto& [cut, count] = *array.parts;
    all[name]["parts"] = {{"axis", cut.axis}, {"sections", cut.sections}, {"count", count}};
  }
  return all;
}

int64_t VersionOf(const Manifest& manifest) {
  for (const SlicedArrays* arrays : {&manifest.model, &manifest.optimizer}) {
    for (const auto& [name, array] : *arrays) {
      if (array.parts) return kVersionOfParts;
    }
  }
  return kVersion;
}

// A list of whole numbers of 0 or more; nothing if it is none.
std::optional<std::vector<int64_t>> NumbersIn(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& number : json) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > INT64_MAX) return std::nullopt;
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

// Its bytes; nothing if they are more than a file can have.
std::optional<int64_t> BytesIn(const SlicedArray& array) {
  int64_t bytes = static_cast<int64_t>(SizeOf(array.dtype));
  bool is_empty = false;
  for (const int64_t size : array.shape) {
    is_empty |= size == 0;
    if (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
}

absl::StatusOr<Piece> ReadPiece(const std::string& name, const SlicedArray& array, const Json& json,
                                const std::vector<ManifestFile>& files) {
  const std::optional<std::vector<int64_t>> numbers = NumbersIn(json);
  if (!numbers || numbers->size() != 3) {
    return Wrong(name, "a piece that is not a list of file, offset and elements");
  }
  const Piece piece = {
      .file = numbers->at(0), .offset = numbers->at(1), .elements = numbers->at(2)};
  if (piece.file >= static_cast<int64_t>(files.size())) {
    return Wrong(name, absl::StrCat("a piece in file ", piece.file, " of ", files.size()));
  }
  const ManifestFile& file = files[piece.file];
  const int64_t room = (file.bytes - piece.offset) / static_cast<int64_t>(SizeOf(array.dtype));
  if (piece.elements > 0 && piece.offset < file.bytes && piece.elements <= room) return piece;
  return Wrong(name, absl::StrCat("a piece of ", piece.elements, " elements at byte ", piece.offset,
                                  " of ", file.name, ", which has ", file.bytes, " bytes"));
}

absl::StatusOr<StoredParts> ReadParts(const std::string& name, const SlicedArray& array,
                                      const Json& json) {
  const bool is_entry = json.is_object() && json.contains("sections");
  const auto sections = is_entry ? NumbersIn(json.at("sections")) : std::nullopt;
  if (!sections || sections->empty()) return Wrong(name, "parts without a list of sections");
  MUSTER_ASSIGN_OR_RETURN(const int64_t axis, CountAt(json, "axis"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t count, CountAt(json, "count"));
  if (axis > static_cast<int64_t>(kDimensionsMax) || count < 2 || count > kPartsMax) {
    return Wrong(name, absl::StrCat(count, " parts along axis ", axis));
  }
  StoredParts parts = {.cut = {.axis = static_cast<int>(axis), .sections = *sections},
                       .count = count};
  const absl::Status fits = ParameterPart::Check(array.shape, parts.cut, count);
  if (!fits.ok()) return Wrong(name, absl::StrCat("parts that do not fit: ", fits.message()));
  return parts;
}

absl::StatusOr<SlicedArray> ReadArray(const std::string& name, const Json& json,
                                      const std::vector<ManifestFile>& files) {
  SlicedArray array;
  const bool is_entry = json.is_object() && json.contains("dtype") &&
                        json.at("dtype").is_string() && json.contains("shape") &&
                        json.contains("pieces") && json.at("pieces").is_array();
  if (!is_entry) return Wrong(name, "no dtype, shape and pieces");
  const auto dtype = DTypeNamed(json.at("dtype").get_ref<const std::string&>());
  const auto shape = NumbersIn(json.at("shape"));
  if (!dtype || !shape || shape->size() > kDimensionsMax) {
    return Wrong(name, "a dtype or a shape that this version does not know");
  }
  array.dtype = *dtype;
  array.shape = *shape;
  const std::optional<int64_t> bytes = BytesIn(array);
  if (!bytes) return Wrong(name, "a shape that no file can hold");
  if (json.contains("parts")) {
    MUSTER_ASSIGN_OR_RETURN(array.parts, ReadParts(name, array, json.at("parts")));
  }
  int64_t elements = 0;
  for (const Json& piece : json.at("pieces")) {
    MUSTER_ASSIGN_OR_RETURN(array.pieces.emplace_back(), ReadPiece(name, array, piece, files));
    if (__builtin_add_overflow(elements, array.pieces.back().elements, &elements)) elements = -1;
    if (elements < 0) break;
  }
  const int64_t wanted = *bytes / static_cast<int64_t>(SizeOf(array.dtype));
  if (elements == wanted) return array;
  return Wrong(
      name, absl::StrCat("that its pieces have ", elements, " elements, and its shape ", wanted));
}

absl::StatusOr<SlicedArrays> ReadArrays(const Json& json, const char* key,
                                        const std::vector<ManifestFile>& files) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("it has no object \"", key, "\""));
  }
  SlicedArrays arrays;
  for (const auto& [name, entry] : found->items()) {
    MUSTER_ASSIGN_OR_RETURN(arrays[name], ReadArray(name, entry, files));
  }
  return arrays;
}

// A file of the checkpoint's own directory, whatever a damaged one says.
absl::StatusOr<ManifestFile> ReadFileEntry(const Json& json) {
  if (!json.is_object() || !json.contains("name") || !json.at("name").is_string()) {
    return absl::InvalidArgumentError("it has a file without a name");
  }
  ManifestFile file = {.name = json.at("name").get<std::string>()};
  const bool is_plain = !file.name.empty() && !absl::StartsWith(file.name, ".") &&
                        file.name.find('/') == std::string::npos &&
                        file.name.find('\0') == std::string::npos;
  if (!is_plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("it names ", Quoted(file.name), ", which is not a file of a checkpoint"));
  }
  MUSTER_ASSIGN_OR_RETURN(file.bytes, CountAt(json, "bytes"));
  return file;
}

struct Placed {
  const Piece* piece;
  const std::string* array;
  int64_t bytes;
};

void AddPieces(const SlicedArrays& arrays, std::vector<Placed>& placed) {
  for (const auto& [name, array] : arrays) {
    for (const Piece& piece : array.pieces) {
      placed.push_back({&piece, &name, piece.elements * static_cast<int64_t>(SizeOf(array.dtype))});
    }
  }
}

absl::Status CheckNoOverlap(const Manifest& manifest) {
  std::vector<Placed> placed;
  AddPieces(manifest.model, placed);
  AddPieces(manifest.optimizer, placed);
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.piece->file, a.piece->offset) < std::pair(b.piece->file, b.piece->offset);
  });
  for (size_t i = 1; i < placed.size(); ++i) {
    const Placed& before = placed[i - 1];
    const Placed& now = placed[i];
    if (before.piece->file != now.piece->file) continue;
    if (before.piece->offset + before.bytes <= now.piece->offset) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(*before.array), " and ", Quoted(*now.array), " lie over one another at byte ",
        now.piece->offset, " of ", manifest.files[now.piece->file].name));
  }
  return absl::OkStatus();
}

// Numbers the digests of all pieces, and returns how many they are.
int64_t NumberDigests(Manifest& manifest) {
  int64_t next = 0;
  for (SlicedArrays* arrays : {&manifest.model, &manifest.optimizer}) {
    for (auto& [name, array] : *arrays) {
      for (Piece& piece : array.pieces) {
        piece.first_digest = next;
        const int64_t bytes = piece.elements * static_cast<int64_t>(SizeOf(array.dtype));
        // A text that lies may have more of them than a number holds.
        const int64_t blocks = NumBlocks(bytes, manifest.block_bytes);
        if (__builtin_add_overflow(next, blocks, &next)) next = INT64_MAX;
      }
    }
  }
  return next;
}

absl::Status CheckVersion(const Json& json) {
  const auto format = json.find("format");
  const auto version = json.find("version");
  if (format == json.end() || *format != kFormat || version == json.end() ||
      !version->is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it does not say \"format\": \"", kFormat, "\" with a version"));
  }
  const bool is_known =
      version->is_number_unsigned() && (*version == kVersion || *version == kVersionOfParts);
  if (is_known) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("it is of format version ", version->dump(),
                                               ", and this program reads versions ", kVersion,
                                               " and ", kVersionOfParts, ": use a newer Muster"));
}

absl::Status ReadDigests(const Json& json, ManifestText& read) {
  const auto digests = json.find("digests");
  const bool is_entry = digests != json.end() && digests->is_object() &&
                        digests->contains(kChecksum) && digests->at(kChecksum).is_string();
  if (!is_entry) return absl::InvalidArgumentError("it has no \"digests\" with their checksum");
  read.digests_sha256 = digests->at(kChecksum).get<std::string>();
  MUSTER_ASSIGN_OR_RETURN(read.manifest.block_bytes, CountAt(*digests, "block_bytes"));
  MUSTER_ASSIGN_OR_RETURN(read.num_digests, CountAt(*digests, "count"));
  if (read.manifest.block_bytes == 0) {
    return absl::InvalidArgumentError("it says that a digest is of 0 bytes");
  }
  const int64_t wanted = NumberDigests(read.manifest);
  if (wanted == read.num_digests) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it says that there are ", read.num_digests,
                                                 " digests, and its pieces have ", wanted));
}

}  // namespace

int64_t SlicedArray::num_elements() const {
  int64_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.elements;
  return elements;
}

// A sum of both numbers could be more than a number holds.
int64_t NumBlocks(int64_t bytes, int64_t block_bytes) {
  return bytes / block_bytes + (bytes % block_bytes != 0 ? 1 : 0);
}

absl::StatusOr<std::string> FormatManifest(const Manifest& manifest) {
  const TrainingState& state = manifest.state;
  if (state.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the step ", state.step, " is negative"));
  }
  try {
    Json json = {{"format", kFormat},
                 {"version", VersionOf(manifest)},
                 {"step", state.step},
                 {"plan", state.plan},
                 {"counters", state.counters},
                 {"metadata", state.metadata},
                 {"model_id", state.model_id},
                 {"model", ToJson(manifest.model)},
                 {"optimizer", ToJson(manifest.optimizer)}};
    if (state.written_by.instance != 0) {
      json["written_by"] = {{"instance", absl::StrCat(state.written_by.instance)},
                            {"round", absl::StrCat(state.written_by.round)}};
    }
    json["files"] = Json::array();
    for (const ManifestFile& file : manifest.files) {
      json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
    }
    json["digests"] = {{"block_bytes", manifest.block_bytes},
                       {"count", manifest.NumDigests()},
                       {kChecksum, Sha256().Add(manifest.digests).Finish()}};
    json[kChecksum] = ChecksumOf(json);
    return json.dump() + "\n";
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan, the metadata or a name is not UTF-8: ", error.what()));
  }
}

absl::StatusOr<ManifestText> ParseManifest(absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const Json json, ReadChecked(text));
  ManifestText read;
  const auto format = json.find("format");
  read.is_of_whole = format != json.end() && *format == std::string(kWholeFormat);
  if (read.is_of_whole) return read;
  MUSTER_RETURN_IF_ERROR(CheckVersion(json));
  if (!json.contains(kChecksum)) return absl::InvalidArgumentError("it has no checksum");
  Manifest& manifest = read.manifest;
  MUSTER_ASSIGN_OR_RETURN(manifest.state, ReadState(json));
  const auto model_id = json.find("model_id");
  if (model_id == json.end() || !model_id->is_string()) {
    return absl::InvalidArgumentError("it has no text \"model_id\"");
  }
  manifest.state.model_id = model_id->get<std::string>();
  const auto files = json.find("files");
  if (files == json.end() || !files->is_array()) {
    return absl::InvalidArgumentError("it has no list \"files\"");
  }
  std::set<std::string> names;
  for (const Json& file : *files) {
    MUSTER_ASSIGN_OR_RETURN(manifest.files.emplace_back(), ReadFileEntry(file));
    const std::string& name = manifest.files.back().name;
    if (names.insert(name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("it names ", Quoted(name), " twice"));
  }
  MUSTER_ASSIGN_OR_RETURN(manifest.model, ReadArrays(json, "model", manifest.files));
  MUSTER_ASSIGN_OR_RETURN(manifest.optimizer, ReadArrays(json, "optimizer", manifest.files));
  MUSTER_RETURN_IF_ERROR(CheckNoOverlap(manifest));
  MUSTER_RETURN_IF_ERROR(ReadDigests(json, read));
  return read;
}

absl::StatusOr<JobRound> WriterOfManifest(absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const Json json, ReadChecked(text));
  MUSTER_ASSIGN_OR_RETURN(const TrainingState state, ReadState(json));
  return state.written_by;
}

}  // namespace muster::checkpoint
