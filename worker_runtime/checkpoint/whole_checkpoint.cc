#include "worker_runtime/checkpoint/whole_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/io/unique_fd.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/publish.h"
#include "worker_runtime/checkpoint/training_json.h"
#include "worker_runtime/checkpoint/writer_name.h"

namespace muster::checkpoint {
namespace {

constexpr char kModel[] = "model.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kTraining[] = "training.json";
constexpr absl::string_view kFiles[] = {kTraining, kModel, kOptimizer};
constexpr char kStepKey[] = "step";  // of the metadata of both safetensors files

constexpr int64_t kTrainingBytesMax = 16 << 20;
constexpr int64_t kLeftoverSeconds = 24 * 60 * 60;

struct Candidate {
  int64_t step = 0;
  bool in_place = false;  // not one that a killed writer had put aside
  std::string path;
};

std::string NameOf(int64_t step) { return absl::StrFormat("step_%08d", step); }

bool IsFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Those of its files that `path` lacks.
std::vector<absl::string_view> MissingIn(const std::string& path) {
  std::vector<absl::string_view> missing;
  for (const absl::string_view name : kFiles) {
    if (!IsFile(absl::StrCat(path, "/", name))) missing.push_back(name);
  }
  return missing;
}

bool IsOneOfOurs(const std::string& name) {
  return std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles);
}

bool IsCheckpoint(const std::string& path) { return MissingIn(path).empty(); }

// "step_00000100", or ".step_00000100.replaced.<random>", which PublishDirectory may leave.
std::optional<Candidate> ParseName(absl::string_view name) {
  Candidate candidate;
  candidate.in_place = !absl::ConsumePrefix(&name, ".");
  if (!absl::ConsumePrefix(&name, "step_")) return std::nullopt;
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const absl::string_view rest = name.substr(digits);
  const bool fits = candidate.in_place ? rest.empty() : absl::StartsWith(rest, kReplaced);
  if (!fits || !absl::SimpleAtoi(name.substr(0, digits), &candidate.step)) return std::nullopt;
  return candidate;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FileError(error.value(), absl::StrCat("cannot list ", directory));
  return names;
}

// The writer in ".step_00000100.<writer>.<random>"; empty in another name.
absl::string_view WriterOf(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  return parts.size() == 4 ? parts[2] : absl::string_view();
}

bool IsLeftover(const std::string& directory, const std::string& name) {
  if (!absl::StartsWith(name, ".step_")) return false;
  // The only copy of a step, perhaps.
  if (const auto aside = ParseName(name);
      aside && !IsCheckpoint(absl::StrCat(directory, "/", NameOf(aside->step)))) {
    return false;
  }
  struct stat info = {};
  const std::string path = absl::StrCat(directory, "/", name);
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return time(nullptr) - info.st_mtime > kLeftoverSeconds || HasWriterEnded(WriterOf(name));
}

// Removes what killed writers left. Nobody writes one checkpoint for a day; younger files may be
// those of another process, perhaps on another node.
void RemoveLeftovers(const std::string& directory) {
  const auto names = NamesIn(directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    std::error_code ignored;  // the checkpoint itself is in place
    if (IsLeftover(directory, name)) {
      std::filesystem::remove_all(absl::StrCat(directory, "/", name), ignored);
    }
  }
}

absl::Status CheckPlace(const std::string& place) {
  struct stat info = {};
  if (lstat(place.c_str(), &info) != 0 || IsCheckpoint(place)) return absl::OkStatus();
  if (S_ISDIR(info.st_mode)) {
    // Part of a checkpoint is in nobody's way: training went on from before it.
    const auto names = NamesIn(place);
    // Another writer may have taken it away meanwhile.
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    if (names.ok() && std::all_of(names->begin(), names->end(), IsOneOfOurs)) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot save a checkpoint as ", place,
                   ": what is there is not a checkpoint. Move it away, or save elsewhere"));
}

// `state` gets the checksums.
absl::Status WriteFiles(const std::string& directory, TrainingState state,
                        absl::Span<const NamedArray> parameters,
                        absl::Span<const NamedArray> moments, const Progress& progress,
                        const FillArray& fill) {
  const std::map<std::string, std::string> metadata = {{kStepKey, absl::StrCat(state.step)}};
  const auto write = [&](const char* file, absl::Span<const NamedArray> arrays, size_t first,
                         ArrayChecksums& checksums) {
    const auto fill_and_sum = [&](size_t i) -> absl::Status {
      if (fill != nullptr) MUSTER_RETURN_IF_ERROR(fill(first + i));
      checksums[arrays[i].name] = ChecksumOf(arrays[i].elements);
      return absl::OkStatus();
    };
    return WriteSafetensors(absl::StrCat(directory, "/", file), arrays, metadata, progress,
                            fill_and_sum);
  };
  MUSTER_RETURN_IF_ERROR(write(kModel, parameters, 0, state.model_sha256));
  MUSTER_RETURN_IF_ERROR(write(kOptimizer, moments, parameters.size(), state.optimizer_sha256));
  MUSTER_ASSIGN_OR_RETURN(const std::string training, FormatTrainingState(state));
  return WriteDurably(absl::StrCat(directory, "/", kTraining), {training});
}

absl::Status IncompleteError(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is incomplete: it lacks ", absl::StrJoin(MissingIn(path), " and ")));
}

absl::StatusOr<int> OpenIn(const UniqueFd& directory, const std::string& path, const char* name) {
  const int fd = openat(directory.get(), name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path, "/", name));
  return fd;
}

absl::StatusOr<SafetensorsFile> OpenArrays(const UniqueFd& directory, const std::string& path,
                                           const char* name, int64_t step,
                                           const ArrayChecksums& checksums) {
  MUSTER_ASSIGN_OR_RETURN(int fd, OpenIn(directory, path, name));
  const std::string file_path = absl::StrCat(path, "/", name);
  MUSTER_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::FromDescriptor(fd, file_path));
  MUSTER_RETURN_IF_ERROR(CheckNames(file, checksums));
  const auto found = file.metadata().find(kStepKey);
  if (found != file.metadata().end() && found->second == absl::StrCat(step)) return file;
  return absl::InvalidArgumentError(absl::StrCat(
      file_path, " is of step ", found == file.metadata().end() ? "?" : found->second, ", but ",
      kTraining, " beside it of step ", step, ": these files do not belong together"));
}

// What a directory that has no checkpoint holds: kNotFound only for nothing.
absl::Status NoCheckpointError(const std::string& directory,
                               const std::vector<std::string>& names) {
  std::string other;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, ".")) continue;  // what a killed writer left
    if (IsOneOfOurs(name)) return IncompleteError(directory);
    if (other.empty() || name < other) other = name;
  }
  if (!other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no checkpoint in ", directory, ", but it is not empty: it holds ",
                     other, "; give the directory of a checkpoint, or an empty one"));
  }
  return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", directory, ": neither ",
                                          kTraining, ", ", kModel, " and ", kOptimizer,
                                          " themselves nor a directory step_<number> with them"));
}

// Newest first; of what killed writers put aside only what is complete.
std::vector<std::string> CheckpointsIn(const std::string& directory,
                                       const std::vector<std::string>& names) {
  std::vector<Candidate> found;
  for (const std::string& name : names) {
    std::optional<Candidate> candidate = ParseName(name);
    if (!candidate) continue;
    candidate->path = absl::StrCat(directory, "/", name);
    if (candidate->in_place || IsCheckpoint(candidate->path)) found.push_back(*candidate);
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.step, a.in_place) > std::pair(b.step, b.in_place);
  });
  std::vector<std::string> paths;
  for (Candidate& candidate : found) paths.push_back(std::move(candidate.path));
  return paths;
}

absl::StatusOr<std::string> ReadText(int fd, const std::string& path) {
  UniqueFd file(fd);
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t got = read(file.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("cannot read ", path));
    if (got == 0) return text;
    text.append(block, static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > kTrainingBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is damaged: it has over ", kTrainingBytesMax, " bytes"));
    }
  }
}

// The answer to `commit` may be old by now, if this process was stopped in between. A checkpoint
// that cannot be read is in nobody's way.
absl::Status CheckNotOfLaterRound(const std::string& place, const JobRound& ours) {
  if (ours.instance == 0) return absl::OkStatus();
  const std::string path = absl::StrCat(place, "/", kTraining);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadText(fd, path);
  if (!text.ok()) return absl::OkStatus();
  const absl::StatusOr<TrainingState> there = ParseTrainingState(*text);
  if (!there.ok() || there->written_by <= ours) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(place, " is of round ", there->written_by.round,
                                           " of the job, and this is round ", ours.round,
                                           ", which is over"));
}

}  // namespace

absl::StatusOr<std::string> WriteWholeCheckpoint(const std::string& directory,
                                                 const TrainingState& state,
                                                 absl::Span<const NamedArray> parameters,
                                                 absl::Span<const NamedArray> moments,
                                                 const Progress& progress, const Commit& commit,
                                                 const FillArray& fill) {
  if (directory.empty()) {
    return absl::InvalidArgumentError("the directory to save a checkpoint in has an empty name");
  }
  MUSTER_RETURN_IF_ERROR(FormatTrainingState(state).status());  // before anything is written
  MUSTER_RETURN_IF_ERROR(CreateDirectories(directory));
  const std::string place = absl::StrCat(directory, "/", NameOf(state.step));
  MUSTER_RETURN_IF_ERROR(CheckPlace(place));
  const std::string hidden =
      absl::StrCat(directory, "/.", NameOf(state.step), ".", WriterName(), ".", RandomSuffix());
  if (mkdir(hidden.c_str(), 0777) != 0) {
    return FileError(errno, absl::StrCat("cannot save a checkpoint in ", directory));
  }
  absl::Status status = WriteFiles(hidden, state, parameters, moments, progress, fill);
  if (status.ok() && commit) status = commit();
  if (status.ok()) status = CheckNotOfLaterRound(place, state.written_by);
  if (status.ok()) status = PublishDirectory(hidden, place);
  if (!status.ok()) {
    std::error_code ignored;  // the first error is the one to tell
    std::filesystem::remove_all(hidden, ignored);
    return status;
  }
  RemoveLeftovers(directory);
  return place;
}

absl::StatusOr<WholeCheckpoint> OpenWholeCheckpoint(const std::string& path) {
  // All files through one descriptor: a checkpoint that is replaced meanwhile is read as one.
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  const std::string training_path = absl::StrCat(path, "/", kTraining);
  MUSTER_ASSIGN_OR_RETURN(int fd, OpenIn(directory, path, kTraining));
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadText(fd, training_path));
  absl::StatusOr<TrainingState> state = ParseTrainingState(text);
  if (!state.ok()) {
    return absl::Status(
        state.status().code(),
        absl::StrCat(training_path,
                     absl::IsInvalidArgument(state.status()) ? " is damaged: " : ": ",
                     state.status().message()));
  }
  MUSTER_ASSIGN_OR_RETURN(SafetensorsFile model,
                          OpenArrays(directory, path, kModel, state->step, state->model_sha256));
  MUSTER_ASSIGN_OR_RETURN(
      SafetensorsFile optimizer,
      OpenArrays(directory, path, kOptimizer, state->step, state->optimizer_sha256));
  return WholeCheckpoint{*std::move(state), std::move(model), std::move(optimizer)};
}

absl::Status CheckWholeCheckpoint(const WholeCheckpoint& checkpoint, const Progress& progress) {
  MUSTER_RETURN_IF_ERROR(CheckArrays(checkpoint.model, checkpoint.state.model_sha256, progress));
  return CheckArrays(checkpoint.optimizer, checkpoint.state.optimizer_sha256, progress);
}

absl::StatusOr<NewestCheckpoint> OpenNewestCheckpoint(const std::string& directory,
                                                      const Progress& progress, const Fits& fits) {
  std::vector<std::string> paths = {directory};
  if (!IsCheckpoint(directory)) {
    MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
    paths = CheckpointsIn(directory, names);
    if (paths.empty()) return NoCheckpointError(directory, names);
  }
  std::vector<std::string> passed_over;
  for (std::string& path : paths) {
    absl::Status damage;
    absl::StatusOr<WholeCheckpoint> opened = IncompleteError(path);
    if (IsCheckpoint(path)) opened = OpenWholeCheckpoint(path);
    // It was there a moment ago: this is not the absence that a first start may find.
    if (absl::IsNotFound(opened.status())) {
      return absl::UnavailableError(opened.status().message());
    }
    if (opened.ok()) {
      if (fits) MUSTER_RETURN_IF_ERROR(fits(*opened, path));
      damage = CheckWholeCheckpoint(*opened, progress);
    } else {
      damage = opened.status();
    }
    if (damage.ok()) {
      return NewestCheckpoint{std::move(path), *std::move(opened), std::move(passed_over)};
    }
    if (!absl::IsInvalidArgument(damage)) return damage;
    passed_over.emplace_back(damage.message());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(passed_over, "; "),
                   "; bring back what is missing, or continue from another checkpoint"));
}

}  // namespace muster::checkpoint
