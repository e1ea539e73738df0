#include "worker_runtime/checkpoint/training_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "muster.whole_checkpoint";
constexpr int64_t kVersion = 1;
constexpr char kModelChecksums[] = "model_sha256";
constexpr char kOptimizerChecksums[] = "optimizer_sha256";
constexpr char kChecksum[] = "sha256";  // of all else, in the text of `Checksum`

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
  static constexpr int kDepthMax = 2;  // of the texts in "plan" and "metadata"
  std::vector<std::set<std::string>> keys_;
  bool has_key_twice_ = false;
  bool is_deep_ = false;
};

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

// The checksum of `json`, however its file was laid out.
std::string Checksum(Json json) {
  json.erase(kChecksum);
  return Sha256().Add(json.dump()).Finish();
}

absl::StatusOr<std::map<std::string, std::string>> TextsIfAny(const Json& json, const char* key) {
  if (!json.contains(key)) return std::map<std::string, std::string>();
  return TextsAt(json, key);
}

// A checkpoint of before it was written has none, nor any of its arrays.
absl::Status CheckChecksum(const Json& json) {
  const auto found = json.find(kChecksum);
  const bool is_older = found == json.end() && !json.contains(kModelChecksums);
  if (is_older || (found != json.end() && *found == Checksum(json))) return absl::OkStatus();
  return absl::InvalidArgumentError("it has other bytes than were written (its SHA-256 differs)");
}

absl::StatusOr<JobRound> ReadJobRound(const std::map<std::string, std::string>& texts) {
  JobRound writer;
  const auto read = [&texts](const char* key, int64_t& number) {
    const auto found = texts.find(key);
    return found != texts.end() && absl::SimpleAtoi(found->second, &number);
  };
  if (read("instance", writer.instance) && read("round", writer.round)) return writer;
  return absl::InvalidArgumentError("\"written_by\" has no numbers \"instance\" and \"round\"");
}

absl::Status CheckVersion(const Json& json) {
  const auto format = json.find("format");
  const auto version = json.find("version");
  if (format == json.end() || *format != kFormat || version == json.end() ||
      !version->is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it does not say \"format\": \"", kFormat, "\" with a version"));
  }
  if (version->is_number_unsigned() && *version == kVersion) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("it is of format version ", version->dump(),
                                               ", and this program reads version ", kVersion,
                                               ": use a newer Muster"));
}

}  // namespace

absl::StatusOr<std::string> FormatTrainingState(const TrainingState& state) {
  if (state.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the step ", state.step, " is negative"));
  }
  nlohmann::ordered_json json = {{"format", kFormat},          {"version", kVersion},
                                 {"step", state.step},         {"plan", state.plan},
                                 {"counters", state.counters}, {"metadata", state.metadata}};
  if (state.written_by.instance != 0) {
    json["written_by"] = {{"instance", absl::StrCat(state.written_by.instance)},
                          {"round", absl::StrCat(state.written_by.round)}};
  }
  if (!state.model_sha256.empty()) json[kModelChecksums] = state.model_sha256;
  if (!state.optimizer_sha256.empty()) json[kOptimizerChecksums] = state.optimizer_sha256;
  try {
    json[kChecksum] = Checksum(Json::parse(json.dump()));
    return json.dump(2) + "\n";
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan or the metadata is not UTF-8: ", error.what()));
  }
}

absl::StatusOr<TrainingState> ParseTrainingState(absl::string_view text) {
  Watch watch;
  const Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t event, Json& parsed) {
        return watch.See(depth, event, parsed);
      },
      /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  MUSTER_RETURN_IF_ERROR(watch.Verdict());
  MUSTER_RETURN_IF_ERROR(CheckChecksum(json));  // first: a flip in the version is damage
  MUSTER_RETURN_IF_ERROR(CheckVersion(json));

  TrainingState state;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_unsigned() || step->get<uint64_t>() > INT64_MAX) {
    return absl::InvalidArgumentError("\"step\" is not a whole number of 0 or more");
  }
  state.step = step->get<int64_t>();
  MUSTER_ASSIGN_OR_RETURN(state.plan, TextsAt(json, "plan"));
  // Checkpoints of before they were written are continued as if nothing had been counted or summed.
  MUSTER_ASSIGN_OR_RETURN(state.counters, TextsIfAny(json, "counters"));
  MUSTER_ASSIGN_OR_RETURN(state.model_sha256, TextsIfAny(json, kModelChecksums));
  MUSTER_ASSIGN_OR_RETURN(state.optimizer_sha256, TextsIfAny(json, kOptimizerChecksums));
  MUSTER_ASSIGN_OR_RETURN(state.metadata, TextsAt(json, "metadata"));
  if (json.contains("written_by")) {
    MUSTER_ASSIGN_OR_RETURN(const auto writer, TextsAt(json, "written_by"));
    MUSTER_ASSIGN_OR_RETURN(state.written_by, ReadJobRound(writer));
  }
  return state;
}

}  // namespace muster::checkpoint
