#include "agent/console/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"

namespace muster::agent {

absl::StatusOr<OutputFile> OutputFile::Open(const LogFolder& folder, const std::string& path,
                                            std::shared_ptr<FileWriter> writer) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, folder.OpenFile(path, O_WRONLY | O_CREAT | O_APPEND));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return LogPathError("open the log file", path, errno);
  return OutputFile(path, std::move(fd), info.st_size, std::move(writer));
}

void OutputFile::Close() {
  if (file_ == nullptr) return;
  writer_->Do([file = std::move(file_)] {
    const int64_t lost = file->lost_bytes.load();
    if (lost == 0) return;
    log::Write(log::Level::kWarning, "log_file_incomplete",
               absl::StrCat(file->path, " lacks ", lost, " bytes that could not be written"),
               {{"path", file->path}, {"lost_bytes", absl::StrCat(lost)}});
  });
}

bool HasContentBelow(const std::string& directory) {
  std::error_code error;
  auto entry = std::filesystem::recursive_directory_iterator(directory, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_regular_file(unknown) && entry->file_size(unknown) > 0 && !unknown) return true;
  }
  return false;
}

std::string ReadFileTail(const std::string& path, off_t start_offset, size_t bytes_max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info;
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size <= start_offset)
    return "";
  const off_t first = std::max(start_offset, info.st_size - static_cast<off_t>(bytes_max));
  std::string tail(static_cast<size_t>(info.st_size - first), '\0');
  const ssize_t got = ::pread(fd.get(), tail.data(), tail.size(), first);
  tail.resize(std::max<ssize_t>(got, 0));
  const size_t torn = first > start_offset ? tail.find('\n') : std::string::npos;
  if (torn != std::string::npos && torn + 1 < tail.size()) tail.erase(0, torn + 1);
  return tail;
}

}  // namespace muster::agent
