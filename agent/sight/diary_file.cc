#include "agent/sight/diary_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/console/log_folder.h"
#include "proto/base/mutex.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/status/diary.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);

void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    text.remove_prefix(static_cast<size_t>(put));
  }
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
  // When it returns, all that was added before the call has been written.
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
    if (file.ok()) WriteAll(file->get(), lines);
  }

 private:
  const LogFolder folder_;
  const std::string path_;
  base::Mutex writing_;  // held while the disk is waited for; never on the loop
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
