// Works on files on a thread of its own: a file system that hangs (a network file server, a disk
// that is being replaced) then holds up the logs, not the agent, whose lease must be renewed every
// few seconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// One file; shared by its owner and by what is queued for it.
struct AppendedFile {
  AppendedFile(std::string its_path, UniqueFd its_fd)
      : path(std::move(its_path)), fd(std::move(its_fd)) {}
  const std::string path;
  UniqueFd fd;
  std::atomic<int64_t> lost_bytes = 0;
};

// Threads: compatible. Where no thread is to be had (ulimit -u), the caller's does the work.
class FileWriter {
 public:
  // What may wait for a file system, over all files of one writer. Beyond it bytes are lost.
  static constexpr size_t kQueuedBytesMax = size_t{32} << 20;

  FileWriter();
  // What has not been written is lost: see Flush. Never waits; the thread ends by itself.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Never blocks. What cannot be written, now or later, is warned of once for each file and counted
  // in `lost_bytes`.
  void Append(const std::shared_ptr<AppendedFile>& file, absl::string_view bytes);
  // Runs `task` on the thread, behind everything that was queued before, also after the writer's
  // end. Never blocks. Its callers bound how many there are.
  void Do(absl::AnyInvocable<void()> task);
  // Waits until everything has been written and done; false if that takes longer than `at_most`.
  bool Flush(absl::Duration at_most);

 private:
  struct State;
  // Shared with the thread, which may be stuck in write(2) when the writer goes.
  const std::shared_ptr<State> state_;
};

}  // namespace muster::agent
