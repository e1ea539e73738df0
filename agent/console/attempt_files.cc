#include "agent/console/attempt_files.h"

namespace muster::agent {
namespace {

void Close(std::optional<OutputFile>& file) {
  if (file) file->Close();
  file.reset();
}

void Replace(std::optional<OutputFile>& file, const std::string& path,
             std::map<std::string, OutputFile>& files) {
  Close(file);
  if (const auto found = files.find(path); found != files.end()) file = std::move(found->second);
}

}  // namespace

void AttemptFiles::Open(std::map<std::string, OutputFile>& files) {
  for (const ConsoleStream stream : kConsoleStreams)
    Replace(filtered_[Index(stream)], FilteredPath(stream), files);
  Replace(hook_, HookPath(), files);
}

void AttemptFiles::CloseFiltered() {
  for (std::optional<OutputFile>& file : filtered_) Close(file);
}

void AttemptFiles::CloseHook() { Close(hook_); }

void AttemptFiles::WriteOut() {
  for (const ConsoleStream stream : kConsoleStreams) {
    const std::string lines = std::exchange(filtered_lines_[Index(stream)], {});
    if (!lines.empty() && filtered_[Index(stream)]) filtered_[Index(stream)]->Append(lines);
  }
}

}  // namespace muster::agent
