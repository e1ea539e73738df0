#include "worker_runtime/checkpoint/new_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/read_file.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/publish.h"
#include "worker_runtime/checkpoint/writer_name.h"

namespace muster::checkpoint {
namespace {

using Names = std::vector<std::string>;

constexpr int64_t kLeftoverSeconds = 24 * 60 * 60;

bool IsLeftover(const std::string& directory, const std::string& name) {
  if (!absl::StartsWith(name, ".")) return false;
  // The only copy of a step, perhaps.
  if (const auto aside = ParseStepDirectory(name);
      aside && !HasManifest(absl::StrCat(directory, "/", NameOfStep(aside->step)))) {
    return false;
  }
  struct stat info = {};
  const std::string path = absl::StrCat(directory, "/", name);
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  // One with another name may be a user's, unless it has a writer's in it.
  if (HasWriterEnded(WriterOf(name))) return true;
  return absl::StartsWith(name, ".step_") && time(nullptr) - info.st_mtime > kLeftoverSeconds;
}

absl::Status CheckPlace(const std::string& place) {
  struct stat info = {};
  if (lstat(place.c_str(), &info) != 0 || HasManifest(place)) return absl::OkStatus();
  if (S_ISDIR(info.st_mode)) {
    // Part of a checkpoint is in nobody's way: training went on from before it.
    const absl::StatusOr<Names> names = ListDirectory(place);
    // Another writer may have taken it away meanwhile.
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    if (names.ok() && std::all_of(names->begin(), names->end(), IsFileOfCheckpoint)) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot save a checkpoint as ", place,
                   ": what is there is not a checkpoint. Move it away, or save elsewhere"));
}

// The answer to `commit` may be old by now, if this process was stopped in between. A checkpoint
// that cannot be read is in nobody's way.
absl::Status CheckNotOfLaterRound(const std::string& place, const JobRound& ours) {
  if (ours.instance == 0) return absl::OkStatus();
  const absl::StatusOr<JobRound> there =
      WriterOfManifest(TextOf(absl::StrCat(place, "/", kManifest)));
  if (!there.ok() || *there <= ours) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(place, " is of round ", there->round,
                                           " of the job, and this is round ", ours.round,
                                           ", which is over"));
}

std::string HiddenName(const std::string& directory, const std::string& name) {
  return absl::StrCat(directory, "/.", name, ".", WriterName(), ".", RandomSuffix());
}

}  // namespace

absl::StatusOr<NewCheckpoint> NewCheckpoint::Begin(std::string place, const TrainingState& state) {
  while (place.size() > 1 && place.back() == '/') place.pop_back();
  MUSTER_RETURN_IF_ERROR(FormatManifest({.state = state}).status());  // before anything is written
  const std::string directory = ParentOf(place);
  MUSTER_RETURN_IF_ERROR(CreateDirectories(directory));
  MUSTER_RETURN_IF_ERROR(CheckPlace(place));
  const std::string name = std::filesystem::path(place).filename().string();
  const std::string hidden = HiddenName(directory, name);
  if (mkdir(hidden.c_str(), 0777) != 0) {
    return FileError(errno, absl::StrCat("cannot save a checkpoint in ", directory));
  }
  return NewCheckpoint(place, hidden);
}

NewCheckpoint::~NewCheckpoint() {
  std::error_code ignored;  // an earlier error is the one to tell
  if (!hidden_.empty()) std::filesystem::remove_all(hidden_, ignored);
}

absl::Status NewCheckpoint::Publish(const Manifest& manifest, const Commit& commit) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  MUSTER_RETURN_IF_ERROR(WriteDurably(absl::StrCat(hidden_, "/", kDigests), manifest.digests));
  MUSTER_RETURN_IF_ERROR(WriteDurably(absl::StrCat(hidden_, "/", kManifest), text));
  if (commit) MUSTER_RETURN_IF_ERROR(commit());
  MUSTER_RETURN_IF_ERROR(CheckNotOfLaterRound(place_, manifest.state.written_by));
  struct stat ours = {};
  struct stat there = {};
  const bool is_known = stat(hidden_.c_str(), &ours) == 0;
  const absl::Status published = PublishDirectory(hidden_, place_);
  // One that has its place and could not be synced has what was there under its hidden name.
  const bool is_there = is_known && stat(place_.c_str(), &there) == 0 &&
                        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  if (published.ok() || is_there) hidden_.clear();
  return published;
}

void RemoveLeftovers(const std::string& directory) {
  for (const std::string& name : ListDirectory(directory).value_or(Names())) {
    std::error_code ignored;  // the checkpoint itself is in place
    if (IsLeftover(directory, name)) {
      std::filesystem::remove_all(absl::StrCat(directory, "/", name), ignored);
    }
  }
}

void RemoveSuperseded(const std::string& directory, int64_t step, int64_t keep,
                      const JobRound& ours) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : ListDirectory(directory).value_or(Names())) {
    const std::optional<StepDirectory> parsed = ParseStepDirectory(name);
    if (!parsed || !parsed->in_place || parsed->step > step) continue;
    if (HasManifest(absl::StrCat(directory, "/", name))) found.emplace_back(parsed->step, name);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  for (size_t i = static_cast<size_t>(keep); i < found.size(); ++i) {
    // Out of sight first: who is killed in the middle leaves no part of a checkpoint in its place.
    const std::string& name = found[i].second;
    if (!CheckNotOfLaterRound(absl::StrCat(directory, "/", name), ours).ok()) continue;
    const std::string hidden = HiddenName(directory, name);
    std::error_code ignored;  // what cannot be removed is in nobody's way
    std::filesystem::rename(absl::StrCat(directory, "/", name), hidden, ignored);
    std::filesystem::remove_all(hidden, ignored);
  }
}

}  // namespace muster::checkpoint
