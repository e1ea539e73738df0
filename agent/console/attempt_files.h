// The files of an attempt that its workers share: what passes the filters of each stream, and what
// the round hook prints. A worker's own are LogPump's.
//
// Loop thread only.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/console/line_format.h"
#include "agent/console/output_file.h"

namespace muster::agent {

inline const char* LogFileName(ConsoleStream stream) {
  return stream == ConsoleStream::kStdout ? "stdout.log" : "stderr.log";
}

class AttemptFiles {
 public:
  // Paths are of the new attempt from now on; the files of the one before stay open until Open.
  void Begin(std::string directory) { directory_ = std::move(directory); }

  const std::string& directory() const { return directory_; }
  std::string FilteredPath(ConsoleStream stream) const {
    return absl::StrCat(directory_, "/filtered_", LogFileName(stream));
  }
  std::string HookPath() const { return directory_ + "/hook.log"; }
  // It says whose logs these are, for who finds those of all nodes in one place; with --log_dir
  // alone.
  std::string AboutPath() const { return directory_ + "/node.json"; }

  // Takes those of the attempt that are among `files`, by path, and closes the others.
  void Open(std::map<std::string, OutputFile>& files);
  void CloseFiltered();
  void CloseHook();

  void AddFiltered(ConsoleStream stream, absl::string_view prefix, absl::string_view line) {
    absl::StrAppend(&filtered_lines_[Index(stream)], prefix, line, "\n");
  }
  // Appends the lines that were added; where no file is open they are dropped.
  void WriteOut();
  // May be called only while it is open.
  OutputFile& hook() { return *hook_; }

 private:
  std::string directory_;
  std::array<std::optional<OutputFile>, 2> filtered_;
  std::array<std::string, 2> filtered_lines_;
  std::optional<OutputFile> hook_;
};

}  // namespace muster::agent
