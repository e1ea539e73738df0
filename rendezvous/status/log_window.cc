#include "rendezvous/status/log_window.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "proto/base/status_macros.h"
#include "rendezvous/status/json_parts.h"

namespace muster::status {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogPlace, rank, stream, attempt, offset)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogsAsk, schema, first_error, follows, tail_lines,
                                                places)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogPiece, from, next, size, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ErrorOfRank, rank, attempt, unix_millis, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LogsOfNode, schema, pieces, errors)

namespace {

constexpr int64_t kBytesMax = int64_t{1} << 50;  // of a file
constexpr int64_t kIntMax = std::numeric_limits<int>::max();
constexpr int64_t kAttemptMax = 10'000'000;

// Looks at the number as it is said: read into an int, a larger one would be another.
absl::Status CheckNumber(const nlohmann::json& of, const char* key, int64_t min, int64_t max) {
  const auto found = of.find(key);
  if (found == of.end()) return absl::OkStatus();
  const bool is_huge = found->is_number_unsigned() && found->get<uint64_t>() > kBytesMax;
  const bool is_in = found->is_number_integer() && !is_huge && found->get<int64_t>() >= min &&
                     found->get<int64_t>() <= max;
  if (is_in) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the question for logs: ", key, " is ",
                                                 found->dump().substr(0, 40), ", not in ", min,
                                                 "..", max));
}

absl::Status CheckPlace(const nlohmann::json& place) {
  if (!place.is_object()) return absl::OkStatus();  // what cannot be read is refused as such
  MUSTER_RETURN_IF_ERROR(CheckNumber(place, "rank", 0, kIntMax));
  MUSTER_RETURN_IF_ERROR(CheckNumber(place, "attempt", 0, kAttemptMax));
  return CheckNumber(place, "offset", 0, kBytesMax);
}

absl::Status CheckNumbers(const nlohmann::json& ask) {
  if (!ask.is_object()) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(CheckNumber(ask, "schema", 0, kIntMax));
  MUSTER_RETURN_IF_ERROR(CheckNumber(ask, "tail_lines", -1, kBytesMax));
  const auto places = ask.find("places");
  if (places == ask.end() || !places->is_array()) return absl::OkStatus();
  for (const nlohmann::json& place : *places) MUSTER_RETURN_IF_ERROR(CheckPlace(place));
  return absl::OkStatus();
}

}  // namespace

std::string ToJson(const LogsAsk& ask) { return ToJsonText(ask); }
std::string ToJson(const LogsOfNode& logs) { return ToJsonText(logs); }

absl::StatusOr<LogsAsk> ParseLogsAsk(absl::string_view json) {
  MUSTER_RETURN_IF_ERROR(CheckNumbers(ParseJsonFromOutside(json)));
  MUSTER_ASSIGN_OR_RETURN(LogsAsk ask,
                          FromJsonText<LogsAsk>(json, "the question for logs", kLogsSchema));
  for (const LogPlace& place : ask.places) {
    if (place.stream == "stdout" || place.stream == "stderr") continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the question for logs: stream is '", absl::Utf8SafeCHexEscape(place.stream.substr(0, 40)),
        "', expected stdout or stderr"));
  }
  return ask;
}

absl::StatusOr<LogsOfNode> ParseLogs(absl::string_view json) {
  return FromJsonText<LogsOfNode>(json, "the logs", kLogsSchema);
}

}  // namespace muster::status
