#include "launcher/sight/stacks_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/sight/status_text.h"
#include "nlohmann/json.hpp"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

struct ReadStacks {
  std::vector<status::StacksOfNode> nodes;
  std::vector<InquiryPart> unanswered;
};

ReadStacks ReadParts(const std::vector<InquiryPart>& parts) {
  ReadStacks read;
  for (const InquiryPart& part : parts) {
    InquiryPart unanswered = part;
    if (part.status.ok()) {
      absl::StatusOr<status::StacksOfNode> stacks = status::ParseStacks(part.body);
      if (stacks.ok()) {
        read.nodes.push_back(*std::move(stacks));
        continue;
      }
      unanswered.status = stacks.status();
    }
    unanswered.body.clear();
    read.unanswered.push_back(std::move(unanswered));
  }
  return read;
}

void AddFrames(const std::string& heading, const std::vector<std::string>& frames,
               std::string& out) {
  if (frames.empty()) return;
  absl::StrAppend(&out, "  ", heading, "\n");
  for (const std::string& frame : frames) absl::StrAppend(&out, "    ", ForTerminal(frame), "\n");
}

// Ranks whose Python is at the same place, and where they are natively; ranks without Python are
// together where they are alike natively.
struct Place {
  std::vector<int> ranks;
  std::vector<status::StackGroup> groups;
};

std::vector<Place> PlacesOf(std::vector<status::StackGroup> groups) {
  std::vector<Place> places;
  for (status::StackGroup& group : groups) {
    const auto same = std::find_if(places.begin(), places.end(), [&](const Place& place) {
      return !group.python.empty() && place.groups.front().python == group.python;
    });
    Place& place = same == places.end() ? places.emplace_back() : *same;
    place.ranks.insert(place.ranks.end(), group.ranks.begin(), group.ranks.end());
    place.groups.push_back(std::move(group));
  }
  for (Place& place : places) std::sort(place.ranks.begin(), place.ranks.end());
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.ranks.size() > b.ranks.size(); });
  return places;
}

// What one rank does.
std::string DoingOf(int rank, const std::vector<status::StacksOfNode>& nodes) {
  for (const status::StacksOfNode& node : nodes) {
    for (const status::RankDoing& of : node.ranks) {
      if (of.rank == rank) return absl::StrCat("pid ", of.pid, ", ", ForTerminal(of.doing));
    }
  }
  return "";
}

}  // namespace

std::string UnansweredText(const std::vector<InquiryPart>& parts) {
  std::string out;
  for (const InquiryPart& part : parts) {
    if (part.status.ok()) continue;
    absl::StrAppend(&out, ForTerminal(part.node));
    if (part.num_ranks > 0) {
      absl::StrAppend(&out, part.num_ranks == 1 ? " (rank " : " (ranks ",
                      RankRange(part.first_rank, part.num_ranks), ")");
    }
    absl::StrAppend(&out, ": ", ForTerminal(part.status.message()), "\n");
  }
  return out;
}

std::string StacksText(const std::vector<InquiryPart>& parts) {
  const ReadStacks read = ReadParts(parts);
  std::string out;
  for (const Place& place : PlacesOf(status::MergeGroups(read.nodes))) {
    absl::StrAppend(&out, RanksInWords(place.ranks), ":\n");
    if (place.ranks.size() == 1) {
      absl::StrAppend(&out, "  ", DoingOf(place.ranks.front(), read.nodes), "\n");
    }
    AddFrames("Python, innermost first:", place.groups.front().python, out);
    for (const status::StackGroup& group : place.groups) {
      const std::string whose =
          place.groups.size() == 1 ? "" : absl::StrCat(" of ", RanksInWords(group.ranks));
      AddFrames(absl::StrCat("native", whose, ", innermost first:"), group.native, out);
      if (!group.native.empty()) continue;
      absl::StrAppend(&out, "  no native stack", whose, ": ", ForTerminal(group.no_native), "\n");
    }
  }
  return out + UnansweredText(read.unanswered);
}

std::string StacksJson(const std::vector<InquiryPart>& parts) {
  const ReadStacks read = ReadParts(parts);
  nlohmann::json json = {{"schema", status::kStacksSchema},
                         {"groups", nlohmann::json::array()},
                         {"ranks", nlohmann::json::array()},
                         {"unanswered", nlohmann::json::array()}};
  for (const status::StackGroup& group : status::MergeGroups(read.nodes)) {
    json["groups"].push_back({{"ranks", group.ranks},
                              {"python", group.python},
                              {"native", group.native},
                              {"no_native", group.no_native}});
  }
  for (const status::StacksOfNode& node : read.nodes) {
    for (const status::RankDoing& rank : node.ranks) {
      json["ranks"].push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"doing", rank.doing}});
    }
  }
  for (const InquiryPart& part : read.unanswered) {
    json["unanswered"].push_back({{"node", part.node},
                                  {"ranks", RankRange(part.first_rank, part.num_ranks)},
                                  {"why", std::string(part.status.message())}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
