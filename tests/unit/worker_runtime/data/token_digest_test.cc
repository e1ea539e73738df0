// What tells tokens from others of the same number.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "muster/data.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace muster::testing {
namespace {

std::string DigestOf(const std::vector<std::string>& texts) {
  const TemporaryDirectory directory;
  std::vector<std::string> paths;
  for (const std::string& text : texts) {
    paths.push_back(directory.File(std::to_string(paths.size())));
    WriteFile(paths.back(), text);
  }
  const auto tokens = OpenTokens(paths);
  EXPECT_THAT(tokens, IsOk());
  const auto digest = TokenDigest(**tokens);
  EXPECT_THAT(digest, IsOk());
  return digest.value_or("");
}

TEST(TokenDigest, DiffersByOneByteAnywhere) {
  const std::string text(10'000, 'x');
  std::set<std::string> digests = {DigestOf({text})};
  for (const size_t place : {size_t{0}, size_t{4095}, size_t{4096}, size_t{9999}}) {
    std::string other = text;
    other[place] = 'y';
    EXPECT_TRUE(digests.insert(DigestOf({other})).second) << place;
  }
  EXPECT_TRUE(digests.insert(DigestOf({text + "x"})).second) << "another length";
}

TEST(TokenDigest, IsThatOfTheTokensWhateverTheirFiles) {
  EXPECT_EQ(DigestOf({"a text", " in pieces"}), DigestOf({"a text in pieces"}));
}

// Counts what is read, and holds another token at one place.
class LongTokens final : public TokenSource {
 public:
  explicit LongTokens(int64_t other = -1) : other_(other) {}
  int64_t num_tokens() const override { return int64_t{1} << 40; }
  int64_t vocabulary() const override { return 50257; }
  std::string Describe() const override { return "a long text"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    read += static_cast<int64_t>(out.size());
    std::fill(out.begin(), out.end(), 7);
    if (first <= other_ && other_ < first + static_cast<int64_t>(out.size()))
      out[other_ - first] = 8;
    return absl::OkStatus();
  }
  mutable int64_t read = 0;

 private:
  const int64_t other_;
};

TEST(TokenDigest, ReadsWindowsOfALongSourceItsEndsAmongThem) {
  const LongTokens tokens;
  const auto digest = TokenDigest(tokens);
  ASSERT_THAT(digest, IsOk());
  EXPECT_EQ(tokens.read, int64_t{1} << 24);
  EXPECT_NE(TokenDigest(LongTokens(0)).value_or(""), *digest);
  EXPECT_NE(TokenDigest(LongTokens((int64_t{1} << 40) - 1)).value_or(""), *digest);
}

}  // namespace
}  // namespace muster::testing
