// What tokens a source holds, in 64 letters.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"

namespace muster {
namespace {

constexpr int64_t kWindow = 4096;                   // tokens that are read at once
constexpr int64_t kWholeTokens = int64_t{1} << 24;  // so many are read in full
constexpr int64_t kWindows = kWholeTokens / kWindow;

}  // namespace

absl::StatusOr<std::string> TokenDigest(const TokenSource& source) {
  const int64_t tokens = source.num_tokens();
  Sha256 hash;
  hash.Add(absl::StrCat(tokens, " of ", source.vocabulary(), "\n"));
  const int64_t in_all = (tokens + kWindow - 1) / kWindow;
  const int64_t read = std::min(in_all, kWindows);
  std::vector<int32_t> window;
  std::vector<uint16_t> narrow;
  for (int64_t i = 0; i < read; ++i) {
    // The first and the last are among them.
    const auto number =
        read == 1 ? 0 : static_cast<int64_t>(static_cast<__int128>(in_all - 1) * i / (read - 1));
    const int64_t first = number * kWindow;
    window.resize(static_cast<size_t>(std::min(kWindow, tokens - first)));
    MUSTER_RETURN_IF_ERROR(source.Read(first, absl::MakeSpan(window)));
    if (source.vocabulary() > 1 << 16) {
      hash.Add(window.data(), window.size() * sizeof(window[0]));
      continue;
    }
    narrow.assign(window.begin(), window.end());
    hash.Add(narrow.data(), narrow.size() * sizeof(narrow[0]));
  }
  return hash.Finish();
}

}  // namespace muster
