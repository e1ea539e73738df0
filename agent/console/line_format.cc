#include "agent/console/line_format.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/console/worker_screen.h"
#include "proto/base/last_traceback.h"

namespace muster::agent {
namespace {

// How much of `text`, which stands behind a `$`, is `name`, with or without braces; 0: it is not.
size_t LengthOfName(absl::string_view text, absl::string_view name) {
  if (absl::StartsWith(text, "{"))
    return absl::StartsWith(text.substr(1), absl::StrCat(name, "}")) ? name.size() + 2 : 0;
  if (!absl::StartsWith(text, name)) return 0;
  const bool goes_on = text.size() > name.size() &&
                       (absl::ascii_isalnum(text[name.size()]) || text[name.size()] == '_');
  return goes_on ? 0 : name.size();
}

}  // namespace

std::string MakeLinePrefix(absl::string_view line_prefix_template, const PrefixFields& fields) {
  const std::pair<absl::string_view, std::string> names[] = {
      {"hostname", fields.host},
      {"role_name", fields.role},
      {"local_rank", ToString(fields.local_rank)},
      {"rank", ToString(fields.rank)}};
  std::string out;
  for (absl::string_view rest = line_prefix_template; !rest.empty();) {
    const size_t plain = std::min(rest.find('$'), rest.size());
    absl::StrAppend(&out, rest.substr(0, plain));
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    size_t taken = 1;
    absl::string_view value = "$";
    if (absl::StartsWith(rest, "$$")) taken = 2;
    for (const auto& [name, text] : names) {
      const size_t length = LengthOfName(rest.substr(1), name);
      if (length == 0) continue;
      taken = 1 + length;
      value = text;
    }
    absl::StrAppend(&out, value);
    rest.remove_prefix(taken);
  }
  return out;
}

std::string FormatRanks(const std::vector<Rank>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1].value() == ranks[last].value() + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[first].value());
    if (last > first) absl::StrAppend(&text, "-", ranks[last].value());
    first = last + 1;
  }
  return text;
}

bool MatchesAnyFilter(absl::string_view line, const std::vector<std::string>& filters) {
  for (const std::string& filter : filters) {
    if (absl::StrContains(line, filter)) return true;
  }
  return false;
}

std::string LastLines(absl::string_view output, size_t bytes_max) {
  WorkerScreen screen(/*has_styles=*/false);
  screen.Write(output);
  std::string shown;
  for (const std::string& row : screen.TakeAll()) absl::StrAppend(&shown, row, "\n");
  if (!shown.empty()) shown.pop_back();
  if (shown.size() <= bytes_max) return shown;
  const bool at_line_start = shown[shown.size() - bytes_max - 1] == '\n';
  shown.erase(0, shown.size() - bytes_max);
  const size_t torn = at_line_start ? std::string::npos : shown.find('\n');
  return torn == std::string::npos ? shown : shown.substr(torn + 1);
}

std::string LastWordsIn(absl::string_view output, size_t bytes_max) {
  const std::optional<LastTraceback> traceback = FindLastTraceback(output);
  if (!traceback || output.size() - traceback->end + traceback->exception.size() <= bytes_max) {
    return LastLines(output, bytes_max);
  }
  const absl::string_view whole =
      output.substr(traceback->begin, traceback->end - traceback->begin);
  const absl::string_view first_line = whole.substr(0, whole.find('\n'));
  std::string shown = LastLines(whole, bytes_max / 2);
  if (!absl::StartsWith(shown, first_line)) shown = absl::StrCat(first_line, "\n  ...\n", shown);
  absl::StrAppend(&shown, "\n...\n");
  const size_t left = bytes_max - std::min(bytes_max, shown.size());
  return shown + LastLines(output.substr(traceback->end), left);
}

void LineCutter::Append(absl::string_view bytes, Emit emit) {
  while (!bytes.empty()) {
    const char* const newline =
        static_cast<const char*>(std::memchr(bytes.data(), '\n', bytes.size()));
    absl::string_view line = newline ? bytes.substr(0, newline - bytes.data()) : bytes;
    bytes.remove_prefix(line.size() + (newline ? 1 : 0));
    for (const void* found; cut_at_carriage_return_ &&
                            (found = std::memchr(line.data(), '\r', line.size())) != nullptr;) {
      const size_t length = static_cast<const char*>(found) - line.data();
      EndLine(line.substr(0, length), '\r', emit);
      line.remove_prefix(length + 1);
    }
    if (newline) {
      EndLine(line, '\n', emit);
    } else if (!line.empty()) {
      Keep(line, emit);
    }
  }
}

void LineCutter::EndLine(absl::string_view text, char terminator, Emit emit) {
  const bool nothing_to_end = text.empty() && unfinished_.empty() && !open_;
  const bool second_half_of_end = terminator == '\n' && after_carriage_return_;
  after_carriage_return_ = terminator == '\r';
  if (nothing_to_end && (terminator == '\r' || second_half_of_end)) return;
  if (!unfinished_.empty()) {
    absl::StrAppend(&unfinished_, text);
    text = unfinished_;
  }
  emit({.text = text, .begins = !open_, .ends = true});
  unfinished_.clear();
  open_ = false;
}

void LineCutter::Keep(absl::string_view text, Emit emit) {
  after_carriage_return_ = false;
  absl::StrAppend(&unfinished_, text);
  if (unfinished_.size() >= kLineBytesMax) Flush(emit);
}

void LineCutter::Flush(Emit emit) {
  if (unfinished_.empty()) return;
  emit({.text = unfinished_, .begins = !open_, .ends = false});
  unfinished_.clear();
  open_ = true;
}

void LineCutter::Finish(Emit emit) {
  if (!unfinished_.empty() || open_) EndLine("", '\n', emit);
}

void ConsoleRows::Print(const Source& source, const LinePiece& piece, std::string& out) {
  if (piece.begins || open_ != source.id) {
    if (!piece.begins && piece.text.empty())
      return;  // its row was ended by a line printed meanwhile
    if (open_ != kNobody) out.push_back('\n');
    absl::StrAppend(&out, source.prefix);
  }
  absl::StrAppend(&out, piece.text);
  if (piece.ends) out.push_back('\n');
  open_ = piece.ends ? kNobody : source.id;
}

void ConsoleRows::PrintLine(absl::string_view line, std::string& out) {
  EndRow(out);
  absl::StrAppend(&out, line, "\n");
}

void ConsoleRows::EndRow(std::string& out) {
  if (open_ != kNobody) out.push_back('\n');
  open_ = kNobody;
}

void OutputTail::Append(ConsoleStream stream, absl::string_view bytes) {
  if (bytes.empty()) return;
  if (stream != last_stream_ && !bytes_.empty() && bytes_.back() != '\n') bytes_.push_back('\n');
  last_stream_ = stream;
  const size_t old_bytes = bytes.size() >= bytes_max_ ? 0 : bytes_.size();
  const bool fits = old_bytes + bytes.size() <= 2 * bytes_max_;
  if (old_bytes == 0) bytes_.clear();
  absl::StrAppend(&bytes_, bytes);
  if (fits) return;
  bytes_.erase(0, bytes_.size() - bytes_max_);
  const size_t torn = bytes_.find('\n');
  if (torn != std::string::npos && torn + 1 < bytes_.size()) bytes_.erase(0, torn + 1);
}

}  // namespace muster::agent
