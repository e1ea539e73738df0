#include "worker_runtime/train/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::train {
namespace {

absl::Status Explain(const std::string& directory, const std::error_code& error) {
  const std::string text =
      absl::StrCat("cannot save in ", directory, ": ", error.message(), "; give another --save");
  if (error == std::errc::not_a_directory || error == std::errc::file_exists) {
    return absl::InvalidArgumentError(text);
  }
  if (error == std::errc::permission_denied) return absl::PermissionDeniedError(text);
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DefaultTexts(const std::string& directory) {
  std::vector<std::string> texts;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (!entry->is_symlink(unreadable) && entry->is_regular_file(unreadable)) {
      texts.push_back(entry->path().string());
    }
  }
  if (texts.empty()) {
    return absl::NotFoundError(absl::StrCat("no --data was given, and there are no texts in ",
                                            directory, " to train on instead; give --data=FILE"));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

absl::Status PrepareSaveDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Explain(directory, error);
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return Explain(directory, std::error_code(errno, std::generic_category()));
  }
  return absl::OkStatus();
}

bool LiesIn(const std::string& path, const std::string& directory) {
  std::error_code ignored;  // what cannot be looked up is compared by name
  const auto full = [&ignored](const std::string& name) {
    const auto absolute = std::filesystem::absolute(name, ignored);
    return std::filesystem::weakly_canonical(absolute / ".", ignored).lexically_normal();
  };
  const std::string relative = full(path).lexically_relative(full(directory)).string();
  return !relative.empty() && relative.rfind("..", 0) != 0;
}

absl::StatusOr<SharedMark> SharedMark::Make(const std::string& directory) {
  MUSTER_RETURN_IF_ERROR(PrepareSaveDirectory(directory));
  std::string path = absl::StrCat(directory, "/.muster_XXXXXX");
  const int fd = mkstemp(path.data());
  if (fd < 0) return Explain(directory, std::error_code(errno, std::generic_category()));
  close(fd);
  return SharedMark(std::move(path));
}

SharedMark::~SharedMark() {
  if (!path_.empty()) unlink(path_.c_str());
}

absl::Status SeesMark(const std::string& mark, const std::string& directory) {
  if (access(mark.c_str(), F_OK) == 0) {
    if (access(directory.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
    return Explain(directory, std::error_code(errno, std::generic_category()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot save in ", directory,
      ": it is not the directory that rank 0 has under "
      "this name, and every rank writes its own part of a checkpoint; give a --save on "
      "a file system that all nodes share"));
}

}  // namespace muster::train
