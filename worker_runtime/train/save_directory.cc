#include "worker_runtime/train/save_directory.h"

#include <unistd.h>

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
