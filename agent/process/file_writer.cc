#include "agent/process/file_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <system_error>
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
  // Bytes for a file, or a task.
  struct Item {
    std::shared_ptr<AppendedFile> file;
    std::string bytes;
    absl::AnyInvocable<void()> task;
  };

  bool HasRoomFor(size_t bytes) {
    base::MutexLock lock(mu);
    return queued_bytes + bytes <= kQueuedBytesMax;
  }

  static void Push(const std::shared_ptr<State>& self, Item item) {
    {
      base::MutexLock lock(self->mu);
      self->queued_bytes += item.bytes.size();
      ++self->num_pending;
      self->queue.push_back(std::move(item));
      self->changed.NotifyAll();
      if (std::exchange(self->runs, true)) return;
    }
    try {
      // Never joined: the last thing that it touches is the state, which it holds.
      std::thread([self] { self->Run(/*waits=*/true); }).detach();
    } catch (const std::system_error&) {  // no more threads: the next item tries again
      self->Run(/*waits=*/false);
      base::MutexLock lock(self->mu);
      self->runs = false;
    }
  }

  // False at the end: nothing is queued, and nothing will be.
  bool Take(Item& item, bool waits) {
    base::MutexLock lock(mu);
    while (queue.empty() && !ends && waits) changed.WaitUntil(mu, MonoTime::InfiniteFuture());
    if (queue.empty()) return false;
    item = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  // Writes what is queued until the writer has gone; without `waits`, until nothing is queued.
  void Run(bool waits) {
    for (Item item; Take(item, waits); item = Item()) {
      if (item.file != nullptr) WriteAll(*item.file, item.bytes);
      if (item.task) item.task();
      const size_t written = item.bytes.size();
      item = Item();  // the last to hold a file closes it, which may take long too
      base::MutexLock lock(mu);
      queued_bytes -= written;
      if (--num_pending == 0) changed.NotifyAll();
    }
  }

  base::Mutex mu;
  base::Condition changed;
  std::deque<Item> queue ABSL_GUARDED_BY(mu);
  // Both with what is being worked on.
  size_t queued_bytes ABSL_GUARDED_BY(mu) = 0;
  size_t num_pending ABSL_GUARDED_BY(mu) = 0;
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
  if (!state_->HasRoomFor(bytes.size())) {
    CountLost(*file, bytes.size(), "its file system does not answer");
    return;
  }
  State::Push(state_, {file, std::string(bytes), nullptr});
}

void FileWriter::Do(absl::AnyInvocable<void()> task) {
  State::Push(state_, {nullptr, "", std::move(task)});
}

bool FileWriter::Flush(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  base::MutexLock lock(state_->mu);
  while (state_->num_pending > 0 && MonoNow() < deadline) {
    state_->changed.WaitUntil(state_->mu, deadline);
  }
  return state_->num_pending == 0;
}

}  // namespace muster::agent
