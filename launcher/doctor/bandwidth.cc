#include "launcher/doctor/bandwidth.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/bounded_json.h"

namespace muster::launcher {
namespace {

constexpr char kCheck[] = "bandwidth";

std::string InWords(double bytes_per_second) {
  if (bytes_per_second <= 0) return "no connection";
  return absl::StrFormat("%.2f Gbit/s", bytes_per_second * 8 / 1e9);
}

double MedianOf(const std::vector<Rate>& rates) {
  std::vector<double> sorted;
  for (const Rate& rate : rates) sorted.push_back(rate.bytes_per_second);
  absl::c_sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

// The quickest that a node sends and receives; none: not measured.
struct BestRates {
  std::optional<double> sent, received;
};

// The nodes that send nothing, or receive nothing, quickly.
std::map<int, BestRates> SlowNodes(const std::vector<Rate>& rates, double least) {
  std::map<int, BestRates> nodes;
  for (const Rate& rate : rates) {
    std::optional<double>& sent = nodes[rate.from].sent;
    std::optional<double>& received = nodes[rate.to].received;
    sent = std::max(sent.value_or(0), rate.bytes_per_second);
    received = std::max(received.value_or(0), rate.bytes_per_second);
  }
  std::erase_if(nodes, [&](const auto& entry) {
    const BestRates& best = entry.second;
    return best.sent.value_or(least) >= least && best.received.value_or(least) >= least;
  });
  return nodes;
}

std::string InWords(const BestRates& best, double least) {
  if (best.received.value_or(least) >= least) {
    return absl::StrCat("sends at most ", InWords(*best.sent), " to any other node");
  }
  if (best.sent.value_or(least) >= least) {
    return absl::StrCat("receives at most ", InWords(*best.received), " from any other node");
  }
  return absl::StrCat("has at most ", InWords(std::max(*best.sent, *best.received)),
                      " with any other node");
}

// The rates between nodes of the job.
std::vector<Rate> KnownRates(const std::vector<Rate>& rates, int num_nodes) {
  std::vector<Rate> known;
  absl::c_copy_if(rates, std::back_inserter(known), [&](const Rate& rate) {
    return rate.from >= 0 && rate.from < num_nodes && rate.to >= 0 && rate.to < num_nodes;
  });
  return known;
}

// What is found where no pair has a connection; `pair` is one of them.
Finding NobodyConnects(const std::vector<std::string>& names, const Rate& pair) {
  return {.severity = Severity::kWarning,
          .check = kCheck,
          .text = absl::StrCat(names[pair.from], " and ", names[pair.to],
                               " have no connection, nor has any other pair that was tried"),
          .advice =
              "run the doctor on each node (srun --ntasks-per-node=1), or look at the "
              "firewalls between them"};
}

}  // namespace

// Source: the circle method for tournaments: the last of an even number stays in its place, and the
// others go round.
std::vector<int> PlanTurns(int num_nodes, int self) {
  const int even = num_nodes + num_nodes % 2;
  const int circle = even - 1;
  std::vector<int> turns;
  for (int turn = 0; turn < std::min(circle, kMeasuringTurnsMax); ++turn) {
    int other = 0;
    if (self == circle) {
      other = turn;
    } else if (self == turn) {
      other = circle;
    } else {
      other = (2 * turn - self + 2 * circle) % circle;
    }
    turns.push_back(other < num_nodes && other != self ? other : -1);
  }
  return turns;
}

std::string Encode(const std::vector<Rate>& rates) {
  nlohmann::json list = nlohmann::json::array();
  for (const Rate& rate : rates) list.push_back({rate.from, rate.to, rate.bytes_per_second});
  return list.dump();
}

std::vector<Rate> DecodeRates(const std::string& text) {
  std::vector<Rate> rates;
  const nlohmann::json list = ParseJsonFromOutside(text);
  if (!list.is_array()) return rates;
  for (const nlohmann::json& row : list) {
    const bool fits = row.is_array() && row.size() == 3 && row[0].is_number_integer() &&
                      row[1].is_number_integer() && row[2].is_number();
    if (fits) rates.push_back({row[0].get<int>(), row[1].get<int>(), row[2].get<double>()});
  }
  return rates;
}

std::vector<Finding> JudgeRates(const std::vector<std::string>& names,
                                const std::vector<Rate>& rates) {
  const std::vector<Rate> known = KnownRates(rates, static_cast<int>(names.size()));
  const auto is_down = [](const Rate& rate) { return rate.bytes_per_second <= 0; };
  if (!known.empty() && absl::c_all_of(known, is_down)) {
    return {NobodyConnects(names, known.front())};
  }
  const double usual = MedianOf(known);
  const double least = std::max(usual / 2, 1.0);
  std::map<int, BestRates> slow = SlowNodes(known, least);
  if (slow.size() == names.size()) slow.clear();  // nobody stands out: the pairs speak
  std::vector<Finding> findings;
  for (const auto& [node, best] : slow) {
    findings.push_back(
        {.severity = Severity::kFault,
         .check = kCheck,
         .text =
             absl::StrCat(names[node], " ", InWords(best, least), "; usual is ", InWords(usual)),
         .advice = "check its card, cable and switch port (ethtool), or leave it out"});
  }
  for (const Rate& rate : known) {
    if (rate.bytes_per_second >= least || slow.count(rate.from) + slow.count(rate.to) > 0) continue;
    findings.push_back(
        {.severity = Severity::kWarning,
         .check = kCheck,
         .text = absl::StrCat(names[rate.from], " to ", names[rate.to], ": ",
                              InWords(rate.bytes_per_second), "; usual is ", InWords(usual)),
         .advice = "check the switches between the two"});
  }
  if (findings.empty()) {
    findings.push_back(
        {.check = kCheck,
         .text = absl::StrCat(InWords(usual), " between two nodes, as far as measured (",
                              known.size(), " ways)")});
  }
  return findings;
}

}  // namespace muster::launcher
