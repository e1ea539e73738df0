#include "worker_runtime/checkpoint/manifest_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

// Looks at the text while it is parsed: nlohmann_json keeps the last of two values of one key, and
// builds any depth of lists. A file with either is not ours.
class Watch {
 public:
  // Called by the parser; false drops the value.
  bool See(int depth, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key) {
      has_key_twice_ |= !keys_.back().insert(parsed.get<std::string>()).second;
    }
    is_deep_ |= depth > kDepthMax;
    return depth <= kDepthMax;
  }
  absl::Status Verdict() const {
    if (has_key_twice_) return absl::InvalidArgumentError("it has a key twice");
    if (is_deep_) return absl::InvalidArgumentError("it has lists or objects in one another");
    return absl::OkStatus();
  }

 private:
  static constexpr int kDepthMax = 5;  // of the numbers of a piece
  std::vector<std::set<std::string>> keys_;
  bool has_key_twice_ = false;
  bool is_deep_ = false;
};

absl::StatusOr<JobRound> ReadJobRound(const Json& json) {
  MUSTER_ASSIGN_OR_RETURN(const auto texts, TextsAt(json, "written_by"));
  JobRound writer;
  const auto read = [&texts](const char* key, int64_t& number) {
    const auto found = texts.find(key);
    return found != texts.end() && absl::SimpleAtoi(found->second, &number);
  };
  if (read("instance", writer.instance) && read("round", writer.round)) return writer;
  return absl::InvalidArgumentError("\"written_by\" has no numbers \"instance\" and \"round\"");
}

}  // namespace

std::string ChecksumOf(Json json) {
  json.erase(kChecksum);
  return Sha256().Add(json.dump()).Finish();
}

absl::StatusOr<Json> ReadChecked(absl::string_view text) {
  Watch watch;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t event, Json& parsed) {
        return watch.See(depth, event, parsed);
      },
      /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  MUSTER_RETURN_IF_ERROR(watch.Verdict());
  const auto found = json.find(kChecksum);
  if (found == json.end() || *found == ChecksumOf(json)) return json;
  return absl::InvalidArgumentError("it has other bytes than were written (its SHA-256 differs)");
}

absl::StatusOr<std::map<std::string, std::string>> TextsAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("it has no object \"", key, "\""));
  }
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" in \"", key, "\" is not a string"));
    }
    texts[name] = value.get<std::string>();
  }
  return texts;
}

absl::StatusOr<std::map<std::string, std::string>> TextsIfAny(const Json& json, const char* key) {
  if (!json.contains(key)) return std::map<std::string, std::string>();
  return TextsAt(json, key);
}

absl::StatusOr<int64_t> CountAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned() || found->get<uint64_t>() > INT64_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", key, "\" is not a whole number of 0 or more"));
  }
  return found->get<int64_t>();
}

absl::StatusOr<TrainingState> ReadState(const Json& json) {
  TrainingState state;
  MUSTER_ASSIGN_OR_RETURN(state.step, CountAt(json, "step"));
  MUSTER_ASSIGN_OR_RETURN(state.plan, TextsAt(json, "plan"));
  // Checkpoints of before they were written are continued as if nothing had been counted or summed.
  MUSTER_ASSIGN_OR_RETURN(state.counters, TextsIfAny(json, "counters"));
  MUSTER_ASSIGN_OR_RETURN(state.metadata, TextsAt(json, "metadata"));
  if (json.contains("written_by")) {
    MUSTER_ASSIGN_OR_RETURN(state.written_by, ReadJobRound(json));
  }
  return state;
}

}  // namespace muster::checkpoint
