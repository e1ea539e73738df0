#include "agent/network/round_judgement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/bounded_json.h"

namespace muster::agent {
namespace {

using nlohmann::json;

constexpr size_t kNamedMax = 3;

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string TextAt(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool FlagAt(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

json ListAt(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : json::array();
}

std::vector<std::string> TextsAt(const json& object, const char* name) {
  std::vector<std::string> texts;
  for (const json& entry : ListAt(object, name)) {
    if (entry.is_string()) texts.push_back(entry.get<std::string>());
  }
  return texts;
}

json ParseObject(absl::string_view text) {
  json parsed = ParseJsonFromOutside(text);
  return parsed.is_object() ? parsed : json::object();
}

json Encode(const std::vector<FailedPair>& pairs) {
  json list = json::array();
  for (const FailedPair& pair : pairs) {
    list.push_back({{"from", pair.from}, {"to", pair.to}, {"fault", ToString(pair.fault)}});
  }
  return list;
}

std::vector<FailedPair> PairsAt(const json& object, const char* name) {
  std::vector<FailedPair> pairs;
  for (const json& pair : ListAt(object, name)) {
    const bool is_pair = pair.is_object() && pair.contains("from") && pair.contains("to") &&
                         pair["from"].is_number_integer() && pair["to"].is_number_integer();
    if (!is_pair) continue;
    pairs.push_back({.from = pair["from"].get<int>(),
                     .to = pair["to"].get<int>(),
                     .fault = PairFaultOf(TextAt(pair, "fault"))});
  }
  return pairs;
}

std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamedMax);
  const std::string list =
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (shown == names.size()) return list;
  return absl::StrCat(list, " and ", names.size() - shown, " more");
}

// Nodes by what they have; nodes that do not know it are left out.
using NodesByValue = absl::btree_map<std::string, std::vector<std::string>>;

std::optional<std::string> CompareValues(const std::string& fact, const NodesByValue& by_value) {
  if (by_value.size() < 2) return std::nullopt;
  const auto usual = absl::c_max_element(
      by_value, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<std::string> odd;
  for (const auto& [value, nodes] : by_value) {
    if (value == usual->first) continue;
    odd.push_back(absl::StrCat(Names(nodes), nodes.size() == 1 ? " has " : " have ", value));
  }
  const size_t others = usual->second.size();
  const std::string rest = others == 1 ? absl::StrCat(usual->second.front(), " has ", usual->first)
                                       : absl::StrCat(others, " nodes have ", usual->first);
  return absl::StrCat(fact, ": ", Names(odd), ", ", rest);
}

}  // namespace

std::string Encode(const NodeReport& report) {
  json facts = json::object();
  for (const auto& [fact, value] : report.facts) facts[fact] = value;
  json all = {{"name", report.end.name},           {"address", report.end.address},
              {"interface", report.end.interface}, {"facts", std::move(facts)},
              {"failed", Encode(report.failed)},   {"require", report.requires_network},
              {"strict", report.requires_likeness}};
  if (report.clock_offset) all["clock"] = *report.clock_offset;
  return Dump(all);
}

NodeReport DecodeNodeReport(absl::string_view text) {
  const json all = ParseObject(text);
  NodeReport report{.end = {.name = TextAt(all, "name"),
                            .address = TextAt(all, "address"),
                            .interface = TextAt(all, "interface")},
                    .requires_network = FlagAt(all, "require"),
                    .requires_likeness = FlagAt(all, "strict")};
  if (const auto facts = all.find("facts"); facts != all.end() && facts->is_object()) {
    for (const auto& [fact, value] : facts->items()) {
      if (value.is_string()) report.facts[fact] = value.get<std::string>();
    }
  }
  report.failed = PairsAt(all, "failed");
  if (const auto clock = all.find("clock"); clock != all.end() && clock->is_number()) {
    report.clock_offset = clock->get<double>();
  }
  return report;
}

std::vector<std::string> CompareNodes(const std::vector<NodeReport>& reports) {
  absl::btree_map<std::string, NodesByValue> facts;
  for (const NodeReport& report : reports) {
    for (const auto& [fact, value] : report.facts) facts[fact][value].push_back(report.end.name);
  }
  std::vector<std::string> differences;
  for (const auto& [fact, by_value] : facts) {
    if (auto difference = CompareValues(fact, by_value)) {
      differences.push_back(*std::move(difference));
    }
  }
  for (const NodeReport& report : reports) {
    const double offset = report.clock_offset.value_or(0);
    if (std::abs(offset) < kClockOffsetMax) continue;
    differences.push_back(absl::StrFormat(
        "clock: that of %s is %.1fs %s that of %s", report.end.name, std::abs(offset),
        offset > 0 ? "ahead of" : "behind", reports.front().end.name));
  }
  return differences;
}

std::string Encode(const RoundJudgement& judgement) {
  return Dump({{"network", judgement.network},
               {"differences", judgement.differences},
               {"refusal", judgement.refusal},
               {"failed", Encode(judgement.failed)}});
}

RoundJudgement DecodeRoundJudgement(absl::string_view text) {
  const json all = ParseObject(text);
  RoundJudgement judgement{.network = TextsAt(all, "network"),
                           .differences = TextsAt(all, "differences"),
                           .refusal = TextAt(all, "refusal")};
  judgement.failed = PairsAt(all, "failed");
  return judgement;
}

RoundJudgement JudgeRound(const std::vector<NodeReport>& reports, const std::string& missing) {
  RoundJudgement judgement{.differences = CompareNodes(reports)};
  const int num_nodes = static_cast<int>(reports.size());
  std::vector<FailedPair> failed;
  for (int node = 0; node < num_nodes; ++node) {
    for (FailedPair pair : reports[node].failed) {
      if (pair.to < 0 || pair.to >= num_nodes || pair.to == node) continue;
      pair.from = node;
      failed.push_back(pair);
      if (failed.size() > kPairsSaidMax) continue;
      judgement.network.push_back(Describe(reports[node].end, reports[pair.to].end, pair.fault));
    }
  }
  if (failed.size() > kPairsSaidMax) {
    judgement.network.push_back(absl::StrCat(
        "the check failed between ", failed.size() - kPairsSaidMax, " more pairs of nodes"));
  }
  const auto requires_network = [](const NodeReport& r) { return r.requires_network; };
  const auto requires_likeness = [](const NodeReport& r) { return r.requires_likeness; };
  if (!judgement.differences.empty() && absl::c_any_of(reports, requires_likeness)) {
    judgement.refusal = absl::StrCat("the nodes differ (--strict_nodes): ",
                                     absl::StrJoin(judgement.differences, "; "));
    return judgement;
  }
  if (!absl::c_any_of(reports, requires_network)) return judgement;
  if (!missing.empty()) {
    judgement.refusal =
        absl::StrCat("the network could not be checked (--network=require): ", missing);
    return judgement;
  }
  absl::btree_set<std::pair<int, int>> seen;
  for (const FailedPair& pair : failed) {
    if (seen.insert(std::minmax(pair.from, pair.to)).second) judgement.failed.push_back(pair);
  }
  return judgement;
}

}  // namespace muster::agent
