#include "agent/sight/diary_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_folder.h"
#include "proto/base/mutex.h"
#include "proto/io/log.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/status/diary.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);

// Takes from `text` what has been written; the errno, 0 if that is all.
int WriteFrom(int fd, std::string& text) {
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t put = ::write(fd, text.data() + done, text.size() - done);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (put == 0 || errno != EINTR) {
      error = put == 0 ? ENOSPC : errno;
    }
  }
  text.erase(0, done);
  return error;
}

}  // namespace

class DiaryFile::File {
 public:
  explicit File(const std::string& directory)
      : folder_(directory), path_(absl::StrCat(directory, "/", status::kDiaryName)) {}

  void Add(const std::string& line) {
    base::MutexLock lock(mu_);
    lines_ += line;
  }
  // When it returns, all that was added before the call has been written. What cannot be written is
  // tried again with what is added next, so that a disk that is full for a while tears no line.
  void Write() {
    base::MutexLock writing(writing_);
    std::string lines;
    {
      base::MutexLock lock(mu_);
      lines = std::exchange(lines_, "");
    }
    if (lines.empty()) return;
    const absl::StatusOr<UniqueFd> file =
        folder_.OpenFile(path_, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK);
    const absl::Status written = [&] {
      if (!file.ok()) return file.status();
      const int error = WriteFrom(file->get(), lines);
      return error == 0 ? absl::OkStatus() : LogPathError("write", path_, error);
    }();
    if (written.ok()) return;
    Warn(written);
    base::MutexLock lock(mu_);
    lines_ = lines + lines_;  // as long as a diary may be, at most
  }

 private:
  void Warn(const absl::Status& why) {
    if (std::exchange(has_warned_, true)) return;
    log::Write(log::Level::kWarning, "diary_failed",
               absl::StrCat(why.message(),
                            "; until it can be written, `muster report` lacks what "
                            "happens"),
               {{"path", path_}});
  }

  const LogFolder folder_;
  const std::string path_;
  bool has_warned_ = false;  // of Write's callers, one at a time
  base::Mutex writing_;      // held while the disk is waited for; never on the loop
  base::Mutex mu_;
  std::string lines_ ABSL_GUARDED_BY(mu_);
};

DiaryFile::DiaryFile(asio::io_context& loop, Lane lane) : aside_(loop, std::move(lane)) {}

void DiaryFile::Open(const std::string& directory) { file_ = std::make_shared<File>(directory); }

void DiaryFile::Append(std::string line) {
  if (file_ == nullptr) return;
  file_->Add(line);
  WriteAside([] {});
}

void DiaryFile::Close(std::function<void()> then) {
  if (file_ == nullptr) return then();
  WriteAside(std::move(then));
}

void DiaryFile::WriteAside(std::function<void()> then) {
  aside_.Run<bool>(
      kPatience,
      [file = file_] {
        file->Write();
        return true;
      },
      [then = std::move(then)](std::optional<bool>) { then(); });
}

}  // namespace muster::agent
