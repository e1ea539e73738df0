#include "launcher/peers/first_word.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"

namespace muster::launcher {
namespace {

// Subcommands of other versions.
constexpr const char* kOthers[] = {"scale"};
constexpr size_t kNearMin = 3;  // shorter words are near to anything

// Whether one slip of a finger makes one of the words from the other.
bool IsNear(const std::string& word, const std::string& name) {
  if (word.size() < kNearMin) return false;
  const size_t longer = std::max(word.size(), name.size());
  const size_t shorter = std::min(word.size(), name.size());
  if (longer - shorter > 1) return false;
  const auto differs = std::mismatch(word.begin(), word.begin() + shorter, name.begin()).first;
  const size_t at = differs - word.begin();
  const auto rest = [](const std::string& text, size_t from) {
    return from < text.size() ? text.substr(from) : std::string();
  };
  if (word.size() > name.size()) return rest(word, at + 1) == rest(name, at);
  if (word.size() < name.size()) return rest(word, at) == rest(name, at + 1);
  if (rest(word, at + 1) == rest(name, at + 1)) return true;
  return at + 1 < word.size() && word[at] == name[at + 1] && word[at + 1] == name[at] &&
         rest(word, at + 2) == rest(name, at + 2);
}

}  // namespace

absl::Status CheckFirstWord(const std::string& word, const std::vector<std::string>& subcommands,
                            const std::function<bool(const std::string&)>& is_here) {
  if (word.empty() || word[0] == '-' || word.find_first_of("/.") != std::string::npos ||
      is_here(word)) {
    return absl::OkStatus();
  }
  const std::string as_program =
      absl::StrCat("to run a program of that name as a worker: muster run --no_python ", word);
  if (std::find(std::begin(kOthers), std::end(kOthers), word) != std::end(kOthers)) {
    return absl::InvalidArgumentError(absl::StrCat("this version has no subcommand ", word,
                                                   " (muster --help lists those that it has); ",
                                                   as_program));
  }
  std::vector<std::string> names = subcommands;
  names.insert(names.end(), std::begin(kOthers), std::end(kOthers));
  for (const std::string& name : names) {
    if (!IsNear(word, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no subcommand ", word,
                                                   "; did you mean muster ", name, "? Otherwise, ",
                                                   as_program));
  }
  return absl::OkStatus();
}

}  // namespace muster::launcher
