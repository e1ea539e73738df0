#include "launcher/sight/logs_text.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "launcher/sight/stacks_text.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using status::LogPiece;
using status::LogsOfNode;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

// "0", "3 stderr".
std::string Who(const LogPiece& piece) {
  return absl::StrCat(piece.from.rank, piece.from.stream == "stderr" ? " stderr" : "");
}

// "0-2,5".
std::string RanksBriefly(const std::vector<int>& ranks) {
  return absl::string_view(RanksInWords(ranks)).substr(0, 6) == "ranks "
             ? RanksInWords(ranks).substr(6)
             : RanksInWords(ranks).substr(5);
}

}  // namespace

absl::StatusOr<std::string> DetailOf(const status::LogsAsk& ask) {
  std::string detail = status::ToJson(ask);
  if (detail.size() <= kInquiryDetailBytesMax) return detail;
  return absl::ResourceExhaustedError(
      absl::StrCat("the job has too many log files (", ask.places.size(),
                   ") to go on in all of them at once; choose a rank with --rank=N"));
}

std::string MergedLines(const std::vector<LogPiece>& pieces) {
  // The n-th time that a rank writes a line is the same line as the n-th time of another.
  using Line = std::tuple<std::string, std::string, int>;  // stream, text, how often before
  struct Seen {
    size_t position = 0;
    std::vector<int> ranks;
  };
  std::map<Line, Seen> lines;
  for (const LogPiece& piece : pieces) {
    std::map<std::string, int> before;
    size_t position = 0;
    for (const std::string& text : LinesOf(piece.text)) {
      Seen& seen = lines[{piece.from.stream, text, before[text]++}];
      seen.position = seen.ranks.empty() ? position : std::max(seen.position, position);
      seen.ranks.push_back(piece.from.rank);
      ++position;
    }
  }
  std::vector<std::pair<const Line*, Seen*>> order;
  for (auto& [line, seen] : lines) {
    std::sort(seen.ranks.begin(), seen.ranks.end());
    order.emplace_back(&line, &seen);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->position, a.second->ranks.front()) <
           std::pair(b.second->position, b.second->ranks.front());
  });
  std::string out;
  for (const auto& [line, seen] : order) {
    const bool is_error = std::get<0>(*line) == "stderr";
    absl::StrAppend(&out, "[", RanksBriefly(seen->ranks), is_error ? " stderr" : "", "] ",
                    std::get<1>(*line), "\n");
  }
  return out;
}

status::LogsAsk LogReel::Next(int64_t tail_lines, bool follows) const {
  status::LogsAsk ask{.follows = follows, .tail_lines = tail_lines};
  for (const auto& [key, piece] : shown_) {
    status::LogPlace place = piece.from;
    place.offset = piece.next;
    ask.places.push_back(std::move(place));
  }
  return ask;
}

bool LogReel::HasMore() const {
  return std::any_of(shown_.begin(), shown_.end(),
                     [](const auto& entry) { return entry.second.next < entry.second.size; });
}

std::string LogReel::ShowPieces(const std::vector<LogPiece>& pieces) {
  if (merges_) return MergedLines(pieces);
  std::string out;
  for (const LogPiece& piece : pieces) {
    if (piece.text.empty()) continue;
    if (layout_ == LogLayout::kByRank) {
      const bool goes_on = shown_.contains({piece.from.rank, piece.from.stream});
      if (!goes_on) {
        absl::StrAppend(&out, out.empty() ? "" : "\n", "==> rank ", piece.from.rank, ", ",
                        piece.from.stream, ", attempt ", piece.from.attempt, " <==\n");
      }
      absl::StrAppend(&out, piece.text, piece.text.back() == '\n' ? "" : "\n");
      continue;
    }
    for (const std::string& line : LinesOf(piece.text)) {
      absl::StrAppend(&out, "[", Who(piece), "] ", line, "\n");
    }
  }
  return out;
}

std::string LogReel::Show(const std::vector<InquiryPart>& parts) {
  std::vector<LogPiece> pieces;
  std::vector<InquiryPart> newly_unanswered;
  for (const InquiryPart& part : parts) {
    absl::Status status = part.status;
    if (status.ok()) {
      absl::StatusOr<LogsOfNode> logs = status::ParseLogs(part.body);
      status = logs.status();
      for (size_t i = 0; logs.ok() && i < logs->pieces.size(); ++i) {
        // A node speaks for its own ranks alone.
        const int64_t index = int64_t{logs->pieces[i].from.rank} - part.first_rank;
        if (index >= 0 && index < part.num_ranks) pieces.push_back(std::move(logs->pieces[i]));
      }
    }
    has_answers_ = has_answers_ || status.ok();
    std::string& told = unanswered_[part.node];
    const std::string why(status.message());
    if (status.ok()) {
      told.clear();
    } else if (told != why) {
      told = why;
      InquiryPart named = part;
      named.status = status;
      newly_unanswered.push_back(std::move(named));
    }
  }
  std::string out = absl::StrCat(UnansweredText(newly_unanswered), ShowPieces(pieces));
  for (LogPiece& piece : pieces) {
    piece.text.clear();
    shown_[{piece.from.rank, piece.from.stream}] = piece;
  }
  return out;
}

std::string FirstErrorText(const std::vector<InquiryPart>& parts) {
  std::vector<std::pair<status::ErrorOfRank, std::string>> errors;  // and the node
  for (const InquiryPart& part : parts) {
    if (!part.status.ok()) continue;
    const absl::StatusOr<LogsOfNode> logs = status::ParseLogs(part.body);
    for (size_t i = 0; logs.ok() && i < logs->errors.size(); ++i) {
      errors.emplace_back(logs->errors[i], part.node);
    }
  }
  const auto first =
      std::min_element(errors.begin(), errors.end(), [](const auto& a, const auto& b) {
        return std::tuple(a.first.attempt, a.first.unix_millis, a.first.rank) <
               std::tuple(b.first.attempt, b.first.unix_millis, b.first.rank);
      });
  if (first == errors.end()) return "";
  const std::string when =
      first->first.unix_millis <= 0
          ? ""
          : absl::StrCat(" at ", absl::FormatTime("%Y-%m-%d %H:%M:%E3S",
                                                  absl::FromUnixMillis(first->first.unix_millis),
                                                  absl::LocalTimeZone()));
  return absl::StrCat("rank ", first->first.rank, " on ", ForTerminal(first->second), ", attempt ",
                      first->first.attempt, when, ":\n",
                      absl::StripTrailingAsciiWhitespace(first->first.text), "\n");
}

}  // namespace muster::launcher
