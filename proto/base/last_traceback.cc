#include "proto/base/last_traceback.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr absl::string_view kFirstLine = "Traceback (most recent call last):";

// The line has its end.
absl::string_view LineAt(absl::string_view text, size_t at) {
  return text.substr(at, std::min(text.find('\n', at), text.size() - 1) + 1 - at);
}

}  // namespace

std::optional<LastTraceback> FindLastTraceback(absl::string_view output) {
  const size_t found = output.rfind(kFirstLine);
  if (found == absl::string_view::npos) return std::nullopt;
  const size_t before = output.substr(0, found).rfind('\n');
  const size_t begin = before == absl::string_view::npos ? 0 : before + 1;
  const absl::string_view prefix = output.substr(begin, found - begin);
  // Frames are set in by blanks; the line behind them names the exception.
  for (size_t at = begin + LineAt(output, begin).size(); at < output.size();) {
    absl::string_view line = LineAt(output, at);
    at += line.size();
    absl::ConsumePrefix(&line, prefix);
    line = absl::StripTrailingAsciiWhitespace(line);
    if (line.empty() || absl::StartsWith(line, " ")) continue;
    return LastTraceback{.begin = begin, .end = at, .exception = std::string(line)};
  }
  return std::nullopt;
}

}  // namespace muster
