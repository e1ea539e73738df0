#include "worker_runtime/checkpoint/slice_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {
namespace {

static_assert(kDigestBlockBytes == kArrayBytesMax, "what is written at once has one digest");

int64_t ElementsOf(const ArrayToWrite& array) {
  int64_t elements = 1;
  for (const int64_t size : array.shape) elements *= size;
  return elements;
}

NamedArray NamedSlice(const ArrayToWrite& array, const Slice& slice) {
  const ConstBuffer elements(nullptr, slice.elements, array.dtype);
  if (slice.elements == ElementsOf(array)) return {array.name, array.shape, elements};
  const int64_t end = slice.first + slice.elements;
  return {absl::StrCat(array.name, "[", slice.first, ":", end, "]"), {slice.elements}, elements};
}

std::string DigestOf(absl::string_view bytes) {
  return absl::HexStringToBytes(Sha256().Add(bytes).Finish());
}

// --- a WrittenFile as text: numbers of eight bytes, then the name and the digests

void PutNumber(std::string& text, int64_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

class NumberReader {
 public:
  explicit NumberReader(absl::string_view text) : text_(text) {}

  int64_t Number() {
    int64_t number = 0;
    const absl::string_view bytes = Bytes(sizeof(number));
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  // Empty where there are fewer.
  absl::string_view Bytes(int64_t count) {
    is_short_ |= count < 0 || static_cast<uint64_t>(count) > text_.size();
    if (is_short_) return {};
    const absl::string_view bytes = text_.substr(0, static_cast<size_t>(count));
    text_.remove_prefix(bytes.size());
    return bytes;
  }
  bool is_short() const { return is_short_; }

 private:
  absl::string_view text_;
  bool is_short_ = false;
};

// --- a manifest of files

struct FoundPiece {
  int64_t first = 0;  // of the array's elements
  Piece piece;
  absl::string_view digests;
};

absl::Status OtherArraysError(const WrittenFile& file) {
  return absl::InternalError(absl::StrCat("what a rank tells of ", file.name,
                                          ", which it has written, is not of these arrays"));
}

// The pieces of each array, by its place among `arrays`. A slice without elements is none.
absl::StatusOr<std::vector<std::vector<FoundPiece>>> PiecesBy(absl::Span<const ArrayToWrite> arrays,
                                                              absl::Span<const WrittenFile> files) {
  std::vector<std::vector<FoundPiece>> pieces(arrays.size());
  for (size_t f = 0; f < files.size(); ++f) {
    absl::string_view digests = files[f].digests;
    for (const WrittenSlice& written : files[f].slices) {
      const Slice& slice = written.slice;
      if (slice.array >= arrays.size()) return OtherArraysError(files[f]);
      const int64_t bytes =
          slice.elements * static_cast<int64_t>(SizeOf(arrays[slice.array].dtype));
      const size_t length = static_cast<size_t>(NumBlocks(bytes, kDigestBlockBytes) * kDigestBytes);
      if (length > digests.size()) return OtherArraysError(files[f]);
      if (slice.elements == 0) continue;
      pieces[slice.array].push_back({.first = slice.first,
                                     .piece = {.file = static_cast<int64_t>(f),
                                               .offset = written.offset,
                                               .elements = slice.elements},
                                     .digests = digests.substr(0, length)});
      digests.remove_prefix(length);
    }
    if (!digests.empty()) return OtherArraysError(files[f]);
  }
  return pieces;
}

// Each element once.
absl::Status CheckCovers(const ArrayToWrite& array, absl::Span<const FoundPiece> sorted) {
  int64_t end = 0;
  for (const FoundPiece& found : sorted) {
    if (found.first != end) break;
    end += found.piece.elements;
  }
  int64_t elements = 0;
  for (const FoundPiece& found : sorted) elements += found.piece.elements;
  if (end == ElementsOf(array) && elements == end) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("of ", array.name, " with ", ElementsOf(array),
                                          " elements the ranks have written ", elements, ", ", end,
                                          " of them in order"));
}

}  // namespace

std::vector<Slice> ShareOf(absl::Span<const Slice> all, int writer, int num_writers) {
  int64_t elements = 0;
  for (const Slice& slice : all) elements += slice.elements;
  // The product of both numbers could be more than a number holds.
  const auto border = [&](int64_t n) {
    return elements / num_writers * n + std::min<int64_t>(n, elements % num_writers);
  };
  const int64_t begin = border(writer);
  const int64_t end = border(writer + 1);
  std::vector<Slice> share;
  int64_t at = 0;  // of the slice, in the sequence
  for (const Slice& slice : all) {
    const int64_t first = std::max(begin, at);
    const int64_t last = std::min(end, at + slice.elements);
    if (first < last) share.push_back({slice.array, slice.first + first - at, last - first});
    at += slice.elements;
  }
  return share;
}

std::string WrittenFile::Encode() const {
  std::string text;
  PutNumber(text, static_cast<int64_t>(name.size()));
  PutNumber(text, bytes);
  PutNumber(text, static_cast<int64_t>(digests.size()));
  PutNumber(text, static_cast<int64_t>(slices.size()));
  for (const WrittenSlice& written : slices) {
    PutNumber(text, static_cast<int64_t>(written.slice.array));
    PutNumber(text, written.slice.first);
    PutNumber(text, written.slice.elements);
    PutNumber(text, written.offset);
  }
  return absl::StrCat(text, name, digests);
}

absl::StatusOr<WrittenFile> WrittenFile::Decode(absl::string_view text) {
  NumberReader reader(text);
  WrittenFile file;
  const int64_t name_size = reader.Number();
  file.bytes = reader.Number();
  const int64_t digests_size = reader.Number();
  const int64_t num_slices = reader.Number();
  for (int64_t i = 0; i < num_slices && !reader.is_short(); ++i) {
    WrittenSlice& written = file.slices.emplace_back();
    written.slice.array = static_cast<size_t>(reader.Number());
    written.slice.first = reader.Number();
    written.slice.elements = reader.Number();
    written.offset = reader.Number();
  }
  file.name = std::string(reader.Bytes(name_size));
  file.digests = std::string(reader.Bytes(digests_size));
  if (!reader.is_short()) return file;
  return absl::InternalError("what a rank tells of the file that it has written is cut off");
}

absl::StatusOr<WrittenFile> WriteSlices(const std::string& directory, const std::string& name,
                                        absl::Span<const ArrayToWrite> arrays,
                                        absl::Span<const Slice> slices, const SliceBytes& bytes_of,
                                        const Progress& progress) {
  std::vector<NamedArray> named;
  std::set<std::string> names;
  for (const Slice& slice : slices) {
    named.push_back(NamedSlice(arrays[slice.array], slice));
    // A parameter may have the name of another one's moment.
    while (!names.insert(named.back().name).second) named.back().name.insert(0, "other/");
  }
  std::vector<std::string> digests(slices.size());
  const auto read = [&](size_t index, int64_t first,
                        int64_t count) -> absl::StatusOr<absl::string_view> {
    const Slice& slice = slices[index];
    const int64_t size = static_cast<int64_t>(SizeOf(arrays[slice.array].dtype));
    MUSTER_ASSIGN_OR_RETURN(const absl::string_view bytes,
                            bytes_of(slice.array, slice.first + first / size, count / size));
    digests[index] += DigestOf(bytes);
    return bytes;
  };
  MUSTER_ASSIGN_OR_RETURN(
      const WrittenArrays written,
      WriteSafetensors(absl::StrCat(directory, "/", name), named, {}, read, progress));
  WrittenFile file = {.name = name, .bytes = written.file_bytes};
  for (size_t i = 0; i < slices.size(); ++i) {
    file.slices.push_back({slices[i], written.offsets[i]});
    file.digests += digests[i];
  }
  return file;
}

absl::StatusOr<Manifest> ManifestOf(TrainingState state, absl::Span<const ArrayToWrite> arrays,
                                    absl::Span<const WrittenFile> files) {
  Manifest manifest = {.state = std::move(state)};
  for (const WrittenFile& file : files) manifest.files.push_back({file.name, file.bytes});
  MUSTER_ASSIGN_OR_RETURN(std::vector<std::vector<FoundPiece>> pieces, PiecesBy(arrays, files));
  std::map<std::string, size_t> by_name[2];  // of the optimizer, of the model
  for (size_t i = 0; i < arrays.size(); ++i) by_name[arrays[i].is_of_model][arrays[i].name] = i;
  Sha256 model_id;
  for (const bool is_of_model : {true, false}) {
    for (const auto& [name, index] : by_name[is_of_model]) {
      std::vector<FoundPiece>& found = pieces[index];
      std::sort(found.begin(), found.end(),
                [](const FoundPiece& a, const FoundPiece& b) { return a.first < b.first; });
      MUSTER_RETURN_IF_ERROR(CheckCovers(arrays[index], found));
      SlicedArray& array = (is_of_model ? manifest.model : manifest.optimizer)[name];
      array.dtype = arrays[index].dtype;
      array.shape = arrays[index].shape;
      array.parts = arrays[index].parts;
      if (is_of_model) model_id.Add(absl::StrCat(name, "="));
      for (FoundPiece& piece : found) {
        piece.piece.first_digest = manifest.NumDigests();
        array.pieces.push_back(piece.piece);
        absl::StrAppend(&manifest.digests, piece.digests);
        if (is_of_model) model_id.Add(piece.digests);
      }
    }
  }
  if (manifest.state.model_id.empty()) manifest.state.model_id = model_id.Finish();
  return manifest;
}

}  // namespace muster::checkpoint
