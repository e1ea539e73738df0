#include "tests/support/mutation.h"
#include "absl/strings/str_cat.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

constexpr size_t kMaxBytes = 4096;
// Characters that mean something in one grammar or another.
constexpr char kTelling[] = "[](){}<>,;:=@#'\"\\-+.0179xX \t\r\n\0\x7f\xc3\xff&*!|%~$/_";

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string Next() {
    std::string text = texts_[Below(texts_.size())];
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(text);
    text.resize(std::min(text.size(), kMaxBytes));
    return text;
  }

 private:
  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  char Byte() {
    return Below(4) == 0 ? static_cast<char>(Below(256)) : kTelling[Below(sizeof(kTelling) - 1)];
  }

  void Change(std::string& text) {
    const size_t at = Below(text.size() + 1);
    const size_t length = Below(std::min<size_t>(text.size() - at, 16) + 1);
    switch (Below(5)) {
      case 0:
        if (at < text.size()) text[at] = Byte();
        return;
      case 1:
        text.insert(at, 1, Byte());
        return;
      case 2:
        text.erase(at, length);
        return;
      case 3:
        text.insert(at, text.substr(at, length));
        return;
      default: {
        const std::string& other = texts_[Below(texts_.size())];
        const size_t from = Below(other.size() + 1);
        text.insert(at, other.substr(from, Below(24)));
      }
    }
  }

  const std::vector<std::string> texts_;
  std::mt19937_64 random_{20261121};
};

}  // namespace

void ForEachMutation(const std::string& corpus, int rounds,
                     const std::function<void(const std::string& text)>& check) {
  const std::string directory = absl::StrCat(kSourceDirectory, "/", corpus);
  std::vector<std::string> texts;
  for (const std::string& file : FilesBelow(directory)) {
    texts.push_back(ReadFile(directory + "/" + file));
    check(texts.back());
  }
  MUSTER_CHECK(!texts.empty());
  Mutator mutator(std::move(texts));
  for (int i = 0; i < rounds; ++i) check(mutator.Next());
}

}  // namespace muster::testing
