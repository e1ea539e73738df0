// Several files of tokens as one source.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "muster/data.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/data/token_file.h"

namespace muster {
namespace {

using data::TokenFile;
using data::TokenFormat;

// The first files stay open; each further one is opened for every read. Opening costs microseconds
// on a local disk, the reader is ahead of the training, a data set of tens of thousands of files
// stays far from the limit of descriptors, and threads share no cache that needs a lock.
constexpr size_t kFilesKeptOpen = 64;

// "1.2 MB" for (1200000, {" bytes", " kB", " MB", …}).
std::string Rounded(int64_t count, absl::Span<const char* const> units) {
  if (count < 1000) return absl::StrCat(count, units[0]);
  double value = static_cast<double>(count);
  size_t unit = 0;
  // 999.95 would be printed as 1000.0.
  while (value >= 999.95 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.1f%s", value, units[unit]);
}

class TokenFiles final : public TokenSource {
 public:
  // `ends[i]` is the number of tokens in files [0, i].
  TokenFiles(std::vector<TokenFile> files, std::vector<int64_t> ends)
      : files_(std::move(files)), ends_(std::move(ends)) {}

  int64_t num_tokens() const override { return ends_.back(); }
  int64_t vocabulary() const override { return files_.front().vocabulary(); }

  std::string Describe() const override {
    const std::string files = absl::StrCat(files_.size(), files_.size() == 1 ? " file" : " files");
    const std::string amount =
        format() == TokenFormat::kText
            ? absl::StrCat(Rounded(num_tokens(), {" bytes", " kB", " MB", " GB", " TB"}), " of")
            : Rounded(num_tokens(), {"", " thousand", " million", " billion"});
    return absl::StrCat(files, ", ", amount, " ", data::NameOf(format()));
  }

  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    MUSTER_CHECK(first >= 0 && first <= num_tokens() &&
                 out.size() <= static_cast<uint64_t>(num_tokens() - first));
    size_t i = std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin();
    for (; !out.empty(); ++i) {
      const size_t count = std::min<size_t>(out.size(), ends_[i] - first);
      const int64_t begin = ends_[i] - files_[i].num_tokens();
      MUSTER_RETURN_IF_ERROR(files_[i].Read(first - begin, out.first(count)));
      first += count;
      out.remove_prefix(count);
    }
    return absl::OkStatus();
  }

 private:
  TokenFormat format() const { return files_.front().format(); }

  // Constant after construction.
  const std::vector<TokenFile> files_;
  const std::vector<int64_t> ends_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(absl::Span<const std::string> paths,
                                                        int64_t vocabulary) {
  if (paths.empty()) return absl::InvalidArgumentError("no data file is named");
  std::vector<TokenFile> files;
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const std::string& path : paths) {
    MUSTER_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(path, vocabulary));
    if (!files.empty() && file.format() != files.front().format()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data file ", path, " holds ", data::NameOf(file.format()), " but ", files.front().path(),
          " holds ", data::NameOf(files.front().format()), "; train on one kind at a time"));
    }
    if (file.num_tokens() > std::numeric_limits<int64_t>::max() - end) {
      return absl::InvalidArgumentError(
          absl::StrCat("data file ", path, " makes the data longer than 2^63 tokens"));
    }
    if (files.size() >= kFilesKeptOpen) file.CloseBetweenReads();
    end += file.num_tokens();
    ends.push_back(end);
    files.push_back(std::move(file));
  }
  return std::make_unique<TokenFiles>(std::move(files), std::move(ends));
}

}  // namespace muster
