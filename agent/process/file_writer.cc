#include "agent/process/file_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

void CountLost(AppendedFile& file, size_t bytes, absl::string_view why) {
  const bool first = file.lost_bytes.fetch_add(static_cast<int64_t>(bytes)) == 0;
  if (!first) return;
  log::Write(log::Level::kWarning, "log_file_failed",
             absl::StrCat("cannot write ", file.path, ": ", why,
                          "; worker output is being lost there, the job goes on"),
             {{"path", file.path}, {"errno", std::string(why)}});
}

void WriteAll(AppendedFile& file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.fd.get(), bytes.data(), bytes.size());
    if (put >= 0) {
      bytes.remove_prefix(put);
    } else if (errno != EINTR) {
      CountLost(file, bytes.size(), std::strerror(errno));
      return;
    }
  }
}

}  // namespace

struct FileWriter::State {
  struct Item {
    std::shared_ptr<AppendedFile> file;
    std::string bytes;
  };

  void Run() {
    while (true) {
      Item item;
      {
        base::MutexLock lock(mu);
        while (queue.empty() && !ends) changed.WaitUntil(mu, MonoTime::InfiniteFuture());
        if (queue.empty()) return;
        item = std::move(queue.front());
        queue.pop_front();
      }
      WriteAll(*item.file, item.bytes);
      const size_t written = item.bytes.size();
      item.file.reset();  // the last to hold it closes it, which may take long too
      base::MutexLock lock(mu);
      queued_bytes -= written;
      if (queued_bytes == 0) changed.NotifyAll();
    }
  }

  base::Mutex mu;
  base::Condition changed;
  std::deque<Item> queue ABSL_GUARDED_BY(mu);
  size_t queued_bytes ABSL_GUARDED_BY(mu) = 0;  // with those that are being written
  bool runs ABSL_GUARDED_BY(mu) = false;
  bool ends ABSL_GUARDED_BY(mu) = false;
};

FileWriter::FileWriter() : state_(std::make_shared<State>()) {}

FileWriter::~FileWriter() {
  base::MutexLock lock(state_->mu);
  state_->ends = true;
  state_->changed.NotifyAll();
}

void FileWriter::Append(const std::shared_ptr<AppendedFile>& file, absl::string_view bytes) {
  if (bytes.empty()) return;
  {
    base::MutexLock lock(state_->mu);
    if (state_->queued_bytes + bytes.size() <= kQueuedBytesMax) {
      state_->queued_bytes += bytes.size();
      state_->queue.push_back({file, std::string(bytes)});
      state_->changed.NotifyAll();
      if (std::exchange(state_->runs, true)) return;
      // Never joined: the last thing that it touches is the state, which it holds.
      std::thread([state = state_] { state->Run(); }).detach();
      return;
    }
  }
  CountLost(*file, bytes.size(), "its file system does not answer");
}

bool FileWriter::Flush(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  base::MutexLock lock(state_->mu);
  while (state_->queued_bytes > 0 && MonoNow() < deadline) {
    state_->changed.WaitUntil(state_->mu, deadline);
  }
  return state_->queued_bytes == 0;
}

}  // namespace muster::agent
