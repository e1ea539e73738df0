#include "rendezvous/status/diary.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "proto/base/bounded_json.h"

namespace muster::status {
namespace {

using Json = nlohmann::ordered_json;

// What is as it is by default is not written.
template <typename Value>
void Put(Json& json, const char* key, const Value& value, const Value& usual) {
  if (!(value == usual)) json[key] = value;
}

template <typename Value>
void Get(const nlohmann::json& json, const char* key, Value& out) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  if constexpr (std::is_same_v<Value, std::string>) {
    if (found->is_string()) out = found->get<std::string>();
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (found->is_number()) out = found->get<Value>();
  } else {
    if (found->is_number_integer()) out = found->get<Value>();
  }
}

DiaryEntry EntryOf(const nlohmann::json& json) {
  DiaryEntry entry;
  Get(json, "what", entry.what);
  Get(json, "unix_millis", entry.unix_millis);
  Get(json, "after_seconds", entry.after_seconds);
  Get(json, "spent", entry.spent);
  Get(json, "round", entry.round);
  Get(json, "restart_count", entry.restart_count);
  Get(json, "rank", entry.rank);
  Get(json, "exit_code", entry.exit_code);
  Get(json, "signal", entry.signal);
  Get(json, "text", entry.text);
  Get(json, "run_id", entry.run_id);
  Get(json, "node", entry.node);
  Get(json, "num_nodes", entry.shape.num_nodes);
  Get(json, "first_rank", entry.shape.first_rank);
  Get(json, "num_ranks", entry.shape.num_ranks);
  Get(json, "world_size", entry.shape.world_size);
  Get(json, "kept", entry.starts.kept);
  Get(json, "forked", entry.starts.forked);
  Get(json, "fresh", entry.starts.fresh);
  const auto steps = json.find("steps");
  if (steps == json.end() || !steps->is_array()) return entry;
  for (const nlohmann::json& pair : *steps) {
    if (!pair.is_array() || pair.size() != 2) continue;
    if (!pair[0].is_number_integer() || !pair[1].is_number_integer()) continue;
    entry.steps.push_back({.rank = pair[0].get<int>(), .step = pair[1].get<int64_t>()});
  }
  return entry;
}

}  // namespace

absl::string_view ToString(Spent spent) {
  switch (spent) {
    case Spent::kForming:
      return "forming";
    case Spent::kPreparing:
      return "preparing";
    case Spent::kRunning:
      return "running";
    case Spent::kHung:
      return "hung";
    case Spent::kWaiting:
      return "waiting";
    case Spent::kStopping:
      return "stopping";
    case Spent::kEnding:
      return "ending";
  }
  return "";
}

std::optional<Spent> ParseSpent(absl::string_view text) {
  for (const Spent spent : kAllSpent) {
    if (ToString(spent) == text) return spent;
  }
  return std::nullopt;
}

std::string ToJsonLine(const DiaryEntry& entry) {
  const DiaryEntry usual;
  Json json = {{"what", entry.what},
               {"unix_millis", entry.unix_millis},
               {"after_seconds", entry.after_seconds}};
  if (entry.what == kBegan) json["schema"] = kDiarySchema;
  Put(json, "run_id", entry.run_id, usual.run_id);
  Put(json, "node", entry.node, usual.node);
  Put(json, "spent", entry.spent, usual.spent);
  Put(json, "round", entry.round, usual.round);
  Put(json, "restart_count", entry.restart_count, usual.restart_count);
  Put(json, "num_nodes", entry.shape.num_nodes, usual.shape.num_nodes);
  Put(json, "first_rank", entry.shape.first_rank, usual.shape.first_rank);
  Put(json, "num_ranks", entry.shape.num_ranks, usual.shape.num_ranks);
  Put(json, "world_size", entry.shape.world_size, usual.shape.world_size);
  Put(json, "kept", entry.starts.kept, usual.starts.kept);
  Put(json, "forked", entry.starts.forked, usual.starts.forked);
  Put(json, "fresh", entry.starts.fresh, usual.starts.fresh);
  Put(json, "rank", entry.rank, usual.rank);
  Put(json, "exit_code", entry.exit_code, usual.exit_code);
  Put(json, "signal", entry.signal, usual.signal);
  Put(json, "text", entry.text, usual.text);
  for (const StepOfRank& rank : entry.steps) json["steps"].push_back({rank.rank, rank.step});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::vector<DiaryEntry>> ParseDiary(absl::string_view lines) {
  std::vector<DiaryEntry> entries;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const nlohmann::json json = ParseJsonFromOutside(line);
    if (!json.is_object()) continue;
    int schema = kDiarySchema;
    Get(json, "schema", schema);
    if (schema != kDiarySchema) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the diary has schema ", schema, ", and this version of muster knows ", kDiarySchema));
    }
    DiaryEntry entry = EntryOf(json);
    if (!entry.what.empty()) entries.push_back(std::move(entry));
    if (entries.size() > kDiaryLinesMax + 2) break;
  }
  return entries;
}

}  // namespace muster::status
