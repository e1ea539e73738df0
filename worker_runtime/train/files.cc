#include "worker_runtime/train/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

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

}  // namespace muster::train
