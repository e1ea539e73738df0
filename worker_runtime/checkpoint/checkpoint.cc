#include "worker_runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/header_reader.h"
#include "worker_runtime/checkpoint/manifest_of_whole.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace muster::checkpoint {
namespace {

constexpr int64_t kManifestBytesMax = 256 << 20;

absl::StatusOr<UniqueFd> OpenIn(const UniqueFd& directory, const std::string& path,
                                const std::string& name) {
  // O_NONBLOCK: to open a pipe by mistake must not wait for its writer.
  UniqueFd file(openat(directory.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() >= 0) return file;
  return FileError(errno, absl::StrCat("cannot open ", path, "/", name));
}

absl::StatusOr<std::string> ReadText(const UniqueFd& directory, const std::string& path,
                                     const std::string& name) {
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd file, OpenIn(directory, path, name));
  struct stat info = {};
  const std::string file_path = absl::StrCat(path, "/", name);
  if (fstat(file.get(), &info) != 0) {
    return FileError(errno, absl::StrCat("cannot read ", file_path));
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kManifestBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_path, " is damaged: it is not a file of at most ", kManifestBytesMax, " bytes"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  MUSTER_RETURN_IF_ERROR(ReadAt(file.get(), 0, text.data(), info.st_size, file_path));
  return text;
}

absl::Status Damaged(const std::string& file, const absl::Status& why) {
  const bool is_damage = absl::IsInvalidArgument(why);
  return absl::Status(why.code(),
                      absl::StrCat(file, is_damage ? " is damaged: " : ": ", why.message()));
}

absl::Status IncompleteError(const std::string& path, const std::vector<std::string>& missing) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is incomplete: it lacks ", absl::StrJoin(missing, " and ")));
}

// The files of a checkpoint that is replaced go one after the other: that is not its damage.
absl::Status MissingError(const UniqueFd& directory, const std::string& path,
                          const std::vector<std::string>& missing) {
  struct stat opened = {};
  struct stat there = {};
  const bool is_in_place = fstat(directory.get(), &opened) == 0 &&
                           stat(path.c_str(), &there) == 0 && opened.st_dev == there.st_dev &&
                           opened.st_ino == there.st_ino;
  if (is_in_place) return IncompleteError(path, missing);
  return absl::UnavailableError(absl::StrCat(path, " was replaced or removed while it was read"));
}

absl::StatusOr<Manifest> OpenWhole(const UniqueFd& directory, const std::string& path,
                                   const std::string& text) {
  std::vector<std::string> missing;
  for (const char* name : {kModel, kOptimizer}) {
    if (faccessat(directory.get(), name, F_OK, 0) != 0) missing.emplace_back(name);
  }
  if (!missing.empty()) return MissingError(directory, path, missing);
  const auto open = [&](const std::string& name) -> absl::StatusOr<SafetensorsFile> {
    MUSTER_ASSIGN_OR_RETURN(UniqueFd file, OpenIn(directory, path, name));
    return SafetensorsFile::FromDescriptor(file.release(), absl::StrCat(path, "/", name));
  };
  MUSTER_ASSIGN_OR_RETURN(const SafetensorsFile model, open(kModel));
  MUSTER_ASSIGN_OR_RETURN(const SafetensorsFile optimizer, open(kOptimizer));
  return ManifestOfWhole(text, model, optimizer);
}

// --- the search

// What a directory that has no checkpoint holds: kNotFound only for nothing.
absl::Status NoCheckpointError(const std::string& directory,
                               const std::vector<std::string>& names) {
  std::string other;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, ".")) continue;  // what a killed writer left
    if (IsFileOfCheckpoint(name)) return IncompleteError(directory, {kManifest});
    if (other.empty() || name < other) other = name;
  }
  if (!other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no checkpoint in ", directory, ", but it is not empty: it holds ",
                     other, "; give the directory of a checkpoint, or an empty one"));
  }
  return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", directory, ": neither ",
                                          kManifest,
                                          " itself nor a directory step_<number> with "
                                          "it"));
}

// Newest first; of what killed writers put aside only what is complete.
std::vector<std::string> CheckpointsIn(const std::string& directory,
                                       const std::vector<std::string>& names) {
  std::vector<std::pair<StepDirectory, std::string>> found;
  for (const std::string& name : names) {
    const std::optional<StepDirectory> parsed = ParseStepDirectory(name);
    std::string path = absl::StrCat(directory, "/", name);
    if (!parsed || (!parsed->in_place && !HasManifest(path))) continue;
    found.emplace_back(*parsed, std::move(path));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.step, a.first.in_place) > std::pair(b.first.step, b.first.in_place);
  });
  std::vector<std::string> paths;
  for (auto& [parsed, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace

// --- a checkpoint

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  Checkpoint opened;
  opened.path_ = path;
  opened.directory_.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.directory_.get() < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  if (!HasManifest(path)) return IncompleteError(path, {kManifest});
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadText(opened.directory_, path, kManifest));
  opened.sha256_ = Sha256().Add(text).Finish();
  const std::string file = absl::StrCat(path, "/", kManifest);
  absl::StatusOr<ManifestText> read = ParseManifest(text);
  if (!read.ok()) return Damaged(file, read.status());
  if (read->is_of_whole) {
    MUSTER_ASSIGN_OR_RETURN(opened.manifest_, OpenWhole(opened.directory_, path, text));
  } else {
    opened.manifest_ = std::move(read->manifest);
    absl::StatusOr<std::string> digests = ReadText(opened.directory_, path, kDigests);
    if (absl::IsNotFound(digests.status())) {
      return MissingError(opened.directory_, path, {kDigests});
    }
    MUSTER_ASSIGN_OR_RETURN(opened.manifest_.digests, std::move(digests));
    const std::string hash = Sha256().Add(opened.manifest_.digests).Finish();
    if (hash != read->digests_sha256 || opened.manifest_.NumDigests() != read->num_digests) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, "/", kDigests,
                       " is damaged: it has other bytes than were written (its SHA-256 differs)"));
    }
  }
  opened.files_.resize(opened.manifest_.files.size());
  opened.is_checked_.resize(static_cast<size_t>(opened.manifest_.NumDigests()));
  return opened;
}

absl::StatusOr<Checkpoint> Checkpoint::OfFiles(const std::string& path, Manifest manifest) {
  Checkpoint opened;
  opened.path_ = path;
  opened.directory_.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.directory_.get() < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  opened.manifest_ = std::move(manifest);
  opened.files_.resize(opened.manifest_.files.size());
  return opened;
}

absl::Status Checkpoint::CheckFiles() const {
  std::vector<std::string> missing;
  absl::Status cut_off;
  for (const ManifestFile& file : manifest_.files) {
    struct stat info = {};
    if (fstatat(directory_.get(), file.name.c_str(), &info, 0) != 0) {
      missing.push_back(file.name);
    } else if (info.st_size != file.bytes) {
      cut_off.Update(absl::InvalidArgumentError(
          absl::StrCat(path_, "/", file.name, " is damaged: it has ", info.st_size, " bytes, and ",
                       file.bytes, " were written")));
    }
  }
  return missing.empty() ? cut_off : MissingError(directory_, path_, missing);
}

std::string Checkpoint::PathOf(int64_t file) const {
  return absl::StrCat(path_, "/", manifest_.files[file].name);
}

absl::StatusOr<int> Checkpoint::FileAt(int64_t index) const {
  UniqueFd& file = files_[index];
  if (file.get() >= 0) return file.get();
  absl::StatusOr<UniqueFd> opened = OpenIn(directory_, path_, manifest_.files[index].name);
  // It was there when the manifest was read: this is not the absence that a first start may find.
  if (absl::IsNotFound(opened.status())) {
    return absl::UnavailableError(
        absl::StrCat(opened.status().message(), "; was the checkpoint replaced or removed?"));
  }
  MUSTER_RETURN_IF_ERROR(opened.status());
  file = *std::move(opened);
  return file.get();
}

// What one digest is of, and what is wanted of that: both in bytes of the file.
struct Checkpoint::Block {
  int64_t file = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t wanted_begin = 0;
  int64_t wanted_end = 0;
  char* out = nullptr;  // of wanted_begin
  int64_t digest = -1;  // of the manifest's; -1: it has none
};

// A block that is longer than what is read at once passes through the hash in parts.
absl::Status Checkpoint::ReadBlock(const Block& block, const std::string& name) const {
  MUSTER_ASSIGN_OR_RETURN(const int fd, FileAt(block.file));
  const std::string path = PathOf(block.file);
  const auto read = [&](int64_t begin, int64_t end, char* out) {
    const absl::Status status = ReadAt(fd, begin, out, end - begin, path);
    if (!absl::IsInvalidArgument(status)) return status;
    return absl::InvalidArgumentError(absl::StrCat(status.message(), ", in ", Quoted(name)));
  };
  if (block.digest < 0 || is_checked_[block.digest]) {
    return read(block.wanted_begin, block.wanted_end, block.out);
  }
  Sha256 hash;
  std::string beside;  // what is read and not wanted
  for (int64_t begin = block.begin; begin < block.end; begin += kDigestBlockBytes) {
    const int64_t end = std::min(block.end, begin + kDigestBlockBytes);
    const bool is_wanted = begin >= block.wanted_begin && end <= block.wanted_end;
    if (!is_wanted) beside.resize(static_cast<size_t>(end - begin));
    char* const to = is_wanted ? block.out + (begin - block.wanted_begin) : beside.data();
    MUSTER_RETURN_IF_ERROR(read(begin, end, to));
    hash.Add(to, static_cast<size_t>(end - begin));
    const int64_t first = std::max(begin, block.wanted_begin);
    const int64_t last = std::min(end, block.wanted_end);
    if (!is_wanted && first < last) {
      std::memcpy(block.out + (first - block.wanted_begin), beside.data() + (first - begin),
                  static_cast<size_t>(last - first));
    }
  }
  const absl::string_view digest =
      absl::string_view(manifest_.digests).substr(block.digest * kDigestBytes, kDigestBytes);
  is_checked_[block.digest] = absl::HexStringToBytes(hash.Finish()) == digest;
  if (is_checked_[block.digest]) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is damaged: ", Quoted(name),
                   " has other bytes than were written (its SHA-256 differs)"));
}

// `count` elements of `size` bytes from element `first` of the piece on.
absl::Status Checkpoint::ReadPiece(const Piece& piece, int64_t size, int64_t first, int64_t count,
                                   char* out, const std::string& name) const {
  const int64_t bytes = piece.elements * size;
  const int64_t wanted_end = (first + count) * size;
  for (int64_t at = first * size; at < wanted_end;) {
    const int64_t number = at / manifest_.block_bytes;
    const int64_t begin = number * manifest_.block_bytes;
    const int64_t end = begin + std::min(manifest_.block_bytes, bytes - begin);
    const int64_t stop = std::min(end, wanted_end);
    Block block = {.file = piece.file,
                   .begin = piece.offset + begin,
                   .end = piece.offset + end,
                   .wanted_begin = piece.offset + at,
                   .wanted_end = piece.offset + stop,
                   .out = out};
    if (!manifest_.digests.empty()) block.digest = piece.first_digest + number;
    MUSTER_RETURN_IF_ERROR(ReadBlock(block, name));
    out += stop - at;
    at = stop;
  }
  return absl::OkStatus();
}

struct Checkpoint::Rectangle {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
};

// Elements in the order of the rows, each of which the file has in a column's run.
absl::Status Checkpoint::ReadTransposed(const SlicedArray& matrix, int64_t first, int64_t count,
                                        char* out) const {
  const int64_t width = matrix.shape[1];
  while (count > 0) {
    Rectangle next = {.first_row = first / width, .rows = 1, .first_column = first % width};
    next.columns = std::min(width - next.first_column, count);
    if (next.columns == width) next.rows = count / width;
    MUSTER_RETURN_IF_ERROR(ReadColumns(matrix, next, out));
    const int64_t done = next.rows * next.columns;
    out += done * static_cast<int64_t>(SizeOf(matrix.dtype));
    first += done;
    count -= done;
  }
  return absl::OkStatus();
}

// Some columns at a time, which lie side by side in the file where all rows are wanted.
absl::Status Checkpoint::ReadColumns(const SlicedArray& matrix, const Rectangle& wanted,
                                     char* out) const {
  const Piece& piece = matrix.pieces[0];
  const int64_t size = static_cast<int64_t>(SizeOf(matrix.dtype));
  const int64_t run = wanted.rows * size;
  const int64_t at_once = std::clamp<int64_t>(kDigestBlockBytes / run, 1, wanted.columns);
  MUSTER_ASSIGN_OR_RETURN(const int fd, FileAt(piece.file));
  const std::string path = PathOf(piece.file);
  std::string runs(static_cast<size_t>(at_once * run), '\0');
  for (int64_t column = 0; column < wanted.columns; column += at_once) {
    const int64_t columns = std::min(at_once, wanted.columns - column);
    const auto place = [&](int64_t i) {
      const int64_t element = (wanted.first_column + column + i) * matrix.shape[0];
      return piece.offset + (element + wanted.first_row) * size;
    };
    if (wanted.rows == matrix.shape[0]) {
      MUSTER_RETURN_IF_ERROR(ReadAt(fd, place(0), runs.data(), columns * run, path));
    } else {
      for (int64_t i = 0; i < columns; ++i) {
        MUSTER_RETURN_IF_ERROR(ReadAt(fd, place(i), runs.data() + i * run, run, path));
      }
    }
    for (int64_t row = 0; row < wanted.rows; ++row) {
      char* to = out + (row * wanted.columns + column) * size;
      const char* from = runs.data() + row * size;
      for (int64_t i = 0; i < columns; ++i) std::memcpy(to + i * size, from + i * run, size);
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const SlicedArrays& arrays, const std::string& name, int64_t first,
                              Buffer out) const {
  const auto found = arrays.find(name);
  if (found == arrays.end()) {
    return absl::NotFoundError(
        absl::StrCat(path_, " has no array ", Quoted(name), " among its ", arrays.size()));
  }
  const SlicedArray& array = found->second;
  const int64_t elements = array.num_elements();
  if (out.dtype != array.dtype || first < 0 || out.count < 0 || first > elements - out.count) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(name), " of ", path_, " has ", elements, " elements of ", ToString(array.dtype),
        ", but ", out.count, " of ", ToString(out.dtype), " from ", first, " were asked for"));
  }
  char* to = static_cast<char*>(out.data);
  if (array.is_transposed) return ReadTransposed(array, first, out.count, to);
  if (array.parts) return ReadParts(array, first, out.count, to, name);
  return ReadStored(array, first, out.count, to, name);
}

absl::Status Checkpoint::ReadStored(const SlicedArray& array, int64_t first, int64_t count,
                                    char* out, const std::string& name) const {
  const int64_t size = static_cast<int64_t>(SizeOf(array.dtype));
  int64_t begin = 0;  // of the piece
  for (const Piece& piece : array.pieces) {
    const int64_t from = std::max(first, begin);
    const int64_t until = std::min(first + count, begin + piece.elements);
    if (from < until) {
      MUSTER_RETURN_IF_ERROR(ReadPiece(piece, size, from - begin, until - from, out, name));
      out += (until - from) * size;
    }
    begin += piece.elements;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadParts(const SlicedArray& array, int64_t first, int64_t count,
                                   char* out, const std::string& name) const {
  const int64_t size = static_cast<int64_t>(SizeOf(array.dtype));
  absl::Status status;
  for (int rank = 0; rank < array.parts->count; ++rank) {
    const ParameterPart part(array.shape, array.parts->cut,
                             {.rank = rank, .size = static_cast<int>(array.parts->count)});
    const int64_t begin = part.CountBefore(first);
    part.ForEachRun(begin, part.CountBefore(first + count) - begin, [&](const ElementRun& run) {
      if (!status.ok()) return;
      status = ReadStored(array, part.first_among_parts() + run.first, run.count,
                          out + (run.first_in_whole - first) * size, name);
    });
    MUSTER_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// --- the search

absl::StatusOr<CheckpointSearch> CheckpointSearch::In(const std::string& directory) {
  if (HasManifest(directory)) return CheckpointSearch({directory});
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  std::vector<std::string> paths = CheckpointsIn(directory, names);
  if (paths.empty()) return NoCheckpointError(directory, names);
  return CheckpointSearch(std::move(paths));
}

absl::StatusOr<Checkpoint> CheckpointSearch::Next(const Fits& fits) {
  while (next_ < paths_.size()) {
    absl::StatusOr<Checkpoint> opened = Checkpoint::Open(paths_[next_++]);
    // It was there a moment ago: this is not the absence that a first start may find.
    if (absl::IsNotFound(opened.status())) {
      return absl::UnavailableError(opened.status().message());
    }
    absl::Status damage = opened.status();
    if (opened.ok()) damage = opened->CheckFiles();
    if (damage.ok() && fits) MUSTER_RETURN_IF_ERROR(fits(*opened));
    if (damage.ok()) return opened;
    if (!absl::IsInvalidArgument(damage)) return damage;
    PassOver(damage.message());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(passed_over_, "; "),
                   "; bring back what is missing, or continue from another checkpoint"));
}

}  // namespace muster::checkpoint
