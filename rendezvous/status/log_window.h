// Which lines of a job's log files somebody wants, and those that a node has: a window at a time,
// so that an answer has a bound however long the files are.
//
// Pure values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::status {

inline constexpr int kLogsSchema = 1;

// A place in the log of one stream of one rank: in attempt_<attempt>/<local rank>/<stream>.log.
struct LogPlace {
  int rank = 0;
  std::string stream;  // "stdout" or "stderr"
  int attempt = 0;
  int64_t offset = 0;
  friend bool operator==(const LogPlace&, const LogPlace&) = default;
};

// What is asked for: Inquiry::detail.
struct LogsAsk {
  int schema = kLogsSchema;
  bool first_error = false;  // of each rank, instead of its lines
  bool follows = false;      // it will be asked again and again
  int64_t tail_lines = 0;    // of logs that no place is given for; -1: from the beginning
  std::vector<LogPlace> places;
};

struct LogPiece {
  LogPlace from;
  int64_t next = 0;  // offset behind the text
  int64_t size = 0;  // of the file, now
  std::string text;  // whole lines, but for the end of a tail, and for a line that fills the window
};

// What a rank, or its program, has said of its failure.
struct ErrorOfRank {
  int rank = 0;
  int attempt = 0;
  int64_t unix_millis = 0;
  std::string text;
};

struct LogsOfNode {
  // Whether no file had more than is shown of it.
  bool ShowsAll() const {
    return std::all_of(pieces.begin(), pieces.end(),
                       [](const LogPiece& piece) { return piece.next >= piece.size; });
  }

  int schema = kLogsSchema;
  std::vector<LogPiece> pieces;  // by rank, standard output first; without those that have no news
  std::vector<ErrorOfRank> errors;
};

std::string ToJson(const LogsAsk& ask);
std::string ToJson(const LogsOfNode& logs);
// Errors: kInvalidArgument: as ParseStatusPage; a number out of its bounds, which are named, or a
//         stream of another name.
absl::StatusOr<LogsAsk> ParseLogsAsk(absl::string_view json);
absl::StatusOr<LogsOfNode> ParseLogs(absl::string_view json);

}  // namespace muster::status
