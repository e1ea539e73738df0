// Reports on a disk, which may be what hangs: so they are written on a lane of their own.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/console/log_folder.h"
#include "agent/process/lane.h"
#include "proto/base/mutex.h"
#include "proto/io/log.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// Loop thread only.
class ReportWriter {
 public:
  // Writes reports to the folder `directory`, which is there.
  explicit ReportWriter(const std::string& directory)
      : directory_(directory), files_(std::make_shared<Files>(LogFolder(directory))) {}

  // The path of another report: "<directory>/hang_<attempt>_<number>.json" for kind "hang".
  std::string NameNext(absl::string_view kind, int attempt) {
    return absl::StrCat(directory_, "/", kind, "_", attempt, "_", ++num_named_, ".json");
  }
  bool HasNamed() const { return num_named_ > 0; }

  // Has the file replaced by `text`, whole or not at all; what was asked for later stays.
  void Write(const std::string& path, std::string text) {
    const bool runs =
        lane_.Do(kPatience, [files = files_, number = ++num_writes_, path, text = std::move(text)] {
          files->Write(number, path, text);
        });
    if (runs) return;
    log::Write(log::Level::kWarning, "no_report",
               absl::StrCat("cannot write ", path,
                            ": its file system does not answer, or there is no thread to write it"),
               {{"path", path}});
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  // Shared with threads that may be stuck.
  class Files {
   public:
    explicit Files(LogFolder folder) : folder_(std::move(folder)) {}

    void Write(int number, const std::string& path, const std::string& text) {
      base::MutexLock lock(mu_);
      int& newest = newest_[path];
      if (number <= newest) return;
      newest = number;
      const std::string unfinished = path + ".part";
      absl::StatusOr<UniqueFd> file =
          folder_.OpenFile(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK);
      if (!file.ok()) return;
      if (!WriteAll(file->get(), text) || file->Close() != 0 ||
          std::rename(unfinished.c_str(), path.c_str()) != 0) {
        std::remove(unfinished.c_str());
      }
    }

   private:
    static bool WriteAll(int fd, absl::string_view text) {
      while (!text.empty()) {
        const ssize_t put = ::write(fd, text.data(), text.size());
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        text.remove_prefix(static_cast<size_t>(put));
      }
      return true;
    }

    const LogFolder folder_;
    base::Mutex mu_;
    std::map<std::string, int> newest_ ABSL_GUARDED_BY(mu_);
  };

  const Lane lane_{"hang_reports"};
  const std::string directory_;
  const std::shared_ptr<Files> files_;
  int num_named_ = 0;
  int num_writes_ = 0;
};

}  // namespace muster::agent
