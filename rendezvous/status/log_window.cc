#include "rendezvous/status/log_window.h"

#include "proto/base/status_macros.h"
#include "rendezvous/status/json_parts.h"

namespace muster::status {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogPlace, rank, stream, attempt, offset)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogsAsk, schema, first_error, follows, tail_lines,
                                                places)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogPiece, from, next, size, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ErrorOfRank, rank, attempt, unix_millis, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogsOfNode, schema, pieces, errors)

std::string ToJson(const LogsAsk& ask) { return ToJsonText(ask); }
std::string ToJson(const LogsOfNode& logs) { return ToJsonText(logs); }

absl::StatusOr<LogsAsk> ParseLogsAsk(absl::string_view json) {
  MUSTER_ASSIGN_OR_RETURN(LogsAsk ask,
                          FromJsonText<LogsAsk>(json, "the question for logs", kLogsSchema));
  for (const LogPlace& place : ask.places) {
    if (place.offset >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no offset ", place.offset));
  }
  return ask;
}

absl::StatusOr<LogsOfNode> ParseLogs(absl::string_view json) {
  return FromJsonText<LogsOfNode>(json, "the logs", kLogsSchema);
}

}  // namespace muster::status
