#include "worker_runtime/train/default_texts.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace muster::train {

absl::StatusOr<std::vector<std::string>> DefaultTexts(const std::string& directory) {
  std::vector<std::string> texts;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (!entry->is_symlink(unreadable) && entry->is_regular_file(unreadable)) {
      texts.push_back(entry->path().string());
    }
  }
  if (texts.empty()) {
    return absl::NotFoundError(absl::StrCat("no --data was given, and there are no texts in ",
                                            directory, " to train on instead; give --data=FILE"));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

}  // namespace muster::train
