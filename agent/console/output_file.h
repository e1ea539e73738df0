// A file that grows with what workers print. It is appended to, never truncated.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/console/log_folder.h"
#include "agent/process/file_writer.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// Threads: compatible.
class OutputFile {
 public:
  // `path` is in the folder. `writer` appends; it must not be null, and outlives the file by its
  // share in it.
  //
  // Errors: as LogFolder::OpenFile.
  static absl::StatusOr<OutputFile> Open(const LogFolder& folder, const std::string& path,
                                         std::shared_ptr<FileWriter> writer);

  // Never blocks: see FileWriter.
  void Append(absl::string_view bytes) { writer_->Append(file_, bytes); }
  // Lets what is queued be written, then says how much has been lost, if anything has, and closes.
  // Never blocks.
  void Close();

  const std::string& path() const { return path_; }
  // The file's size when it was opened: what an earlier attempt has written.
  off_t start_offset() const { return start_offset_; }
  int64_t lost_bytes() const { return file_ == nullptr ? 0 : file_->lost_bytes.load(); }
  // The descriptor itself, for a worker that writes without us. Nothing may be appended then.
  UniqueFd TakeDescriptor() { return std::move(file_->fd); }

 private:
  OutputFile(std::string path, UniqueFd fd, off_t start_offset, std::shared_ptr<FileWriter> writer)
      : path_(path),
        file_(std::make_shared<AppendedFile>(path, std::move(fd))),
        start_offset_(start_offset),
        writer_(std::move(writer)) {}

  std::string path_;
  std::shared_ptr<AppendedFile> file_;
  off_t start_offset_ = 0;
  std::shared_ptr<FileWriter> writer_;
};

// True if any file below `directory` has content.
bool HasContentBelow(const std::string& directory);

// The last `bytes_max` bytes of the file behind `start_offset`, whole lines if there are several;
// empty if it cannot be read.
std::string ReadFileTail(const std::string& path, off_t start_offset, size_t bytes_max);

}  // namespace muster::agent
