// What muster-train reads and where it writes, looked at before there is anything to lose.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::train {

struct SaveOptions {
  std::string directory;  // of checkpoints; empty: none are written
  int64_t every = 0;      // steps; 0: only at the end
  int64_t keep = 0;       // EngineOptions::keeps_checkpoints
};

// Text that most machines have, for a first run without any data.
inline constexpr char kDefaultTexts[] = "/usr/share/common-licenses";

// The regular files of `directory` by name. Links are left out: here they are second names of
// others, and each text shall count once.
//
// Errors: kNotFound: there are none (says to give --data).
absl::StatusOr<std::vector<std::string>> DefaultTexts(const std::string& directory = kDefaultTexts);

// Makes `directory` with its parents where it is missing, and sees whether files may be made in it:
// found out now, a wrong name costs nothing; at the end it would cost the training.
//
// Errors: kInvalidArgument: it, or a parent, is a file; kPermissionDenied; kFailedPrecondition:
//         anything else that the file system says.
absl::Status PrepareSaveDirectory(const std::string& directory);

// Whether `path` is `directory` or lies in it, whatever their names.
bool LiesIn(const std::string& path, const std::string& directory);

// A file that is made in `directory` to be looked for by other ranks, and goes with this object.
class SharedMark {
 public:
  // Errors: PrepareSaveDirectory's.
  static absl::StatusOr<SharedMark> Make(const std::string& directory);
  ~SharedMark();
  SharedMark(SharedMark&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SharedMark& operator=(SharedMark&&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit SharedMark(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Whether a rank sees the mark that rank 0 has made in `directory`: each writes a part of every
// checkpoint there.
//
// Errors: kInvalidArgument: it does not; kPermissionDenied: it may not write there.
absl::Status SeesMark(const std::string& mark, const std::string& directory);

}  // namespace muster::train
