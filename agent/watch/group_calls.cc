#include "agent/watch/group_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/base/endpoint.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr size_t kHostBytesMax = 255;
constexpr int kWorldSizeMax = 1 << 20;
// A process can make no more groups at a time than this that are worth a word.
constexpr size_t kGroupsMax = 256;
constexpr size_t kSaidMax = 16;

std::string Shown(const std::string& host, int port) {
  return ToString(Endpoint{.host = absl::CHexEscape(host), .port = port});
}

std::string RanksOf(int world_size) {
  return absl::StrCat(world_size, world_size == 1 ? " rank" : " ranks");
}

std::string CallOf(int world_size) { return world_size == 0 ? "TCPStore" : "init_process_group"; }

absl::Status NoNote() { return absl::InvalidArgumentError("no note of the hook"); }

// Numbers of a worker may be anything.
template <typename Json>
std::optional<int> NumberAt(const Json& json, const char* key, int low, int high) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const int64_t number = found->template get<int64_t>();
  if (number < low || number > high) return std::nullopt;
  return static_cast<int>(number);
}

template <typename Json>
std::optional<std::string> HostOf(const Json& json) {
  if (!json.is_string()) return std::nullopt;
  const std::string host = json.template get<std::string>();
  if (host.size() > kHostBytesMax) return std::nullopt;
  return host;
}

}  // namespace

absl::StatusOr<GroupNote> ReadGroupNote(absl::string_view text) {
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return NoNote();
  const auto round = json.find("round");
  const auto is_begun = json.find("is_begun");
  if (round == json.end() || !round->is_number_integer() || is_begun == json.end() ||
      !is_begun->is_boolean()) {
    return NoNote();
  }
  GroupNote note{.round = Round(round->get<int64_t>())};
  if (!is_begun->get<bool>()) return note;
  const std::optional<int> world_size = NumberAt(json, "world_size", 0, kWorldSizeMax);
  const std::optional<int> rank = NumberAt(json, "rank", 0, kWorldSizeMax);
  const std::optional<int> port = NumberAt(json, "port", 0, 65535);
  const auto host = json.find("host");
  const auto asked = json.find("asked");
  const auto at_launcher = json.find("at_launcher");
  if (!world_size || !rank || !port || host == json.end() || !HostOf(*host) ||
      asked == json.end() || !asked->is_array() || at_launcher == json.end() ||
      !at_launcher->is_boolean()) {
    return NoNote();
  }
  GroupCall call{.rank = *rank,
                 .world_size = *world_size,
                 .host = *HostOf(*host),
                 .port = *port,
                 .is_at_launcher = at_launcher->get<bool>()};
  if (asked->size() == 2 && (*asked)[1].is_number_integer() && HostOf((*asked)[0])) {
    const int64_t asked_port = (*asked)[1].get<int64_t>();
    if (asked_port < 0 || asked_port > 65535) return NoNote();
    call.asked = Shown(*HostOf((*asked)[0]), static_cast<int>(asked_port));
  }
  note.call = std::move(call);
  return note;
}

GroupCalls::Place GroupCalls::PlaceOf(const GroupCall& call) {
  return {Shown(call.host, call.port), call.world_size};
}

void GroupCalls::StartRound(int num_nodes) {
  num_nodes_ = num_nodes;
  groups_.clear();
  said_.clear();
}

// Said by one rank of the group, the first: the others' words would be the same.
std::optional<GroupCalls::Line> GroupCalls::Begin(pid_t pid, GroupCall call, MonoTime now) {
  Return(pid, now);
  const Place place = PlaceOf(call);
  const bool is_news = call.rank == 0 && !call.asked.empty() &&
                       (call.is_at_launcher ? call.asked != place.first : true) &&
                       said_.size() < kSaidMax &&
                       said_.insert(absl::StrCat(call.asked, " ", call.world_size)).second;
  std::optional<Line> line;
  if (is_news && call.is_at_launcher) {
    line = Line{.text = absl::StrCat("the script asks for ", call.asked, " as its master; its ",
                                     RanksOf(call.world_size), " meet at the launcher's store, ",
                                     place.first, ", instead")};
  } else if (is_news) {
    line =
        Line{.text = absl::StrCat("a group of ", RanksOf(call.world_size),
                                  " that the script makes by itself meets at ", call.asked,
                                  ", where its rank 0 listens, and not at the launcher's store")};
  }
  if (groups_.size() >= kGroupsMax && !groups_.contains(place)) return line;
  Group& group = groups_[place];
  if (group.waiting.empty()) group = {.since = now, .next_notice = now + kFirstNotice};
  group.came.insert(call.rank);
  group.waiting[pid] = {.call = std::move(call), .since = now};
  return line;
}

std::optional<GroupCalls::Line> GroupCalls::Return(pid_t pid, MonoTime now) {
  for (auto it = groups_.begin(); it != groups_.end(); ++it) {
    Group& group = it->second;
    if (group.waiting.erase(pid) == 0) continue;
    if (!group.waiting.empty()) return std::nullopt;
    std::optional<Line> line;
    if (group.is_told) {
      line = Line{
          .text = it->first.second == 0
                      ? absl::StrCat("no rank waits for the store at ", it->first.first,
                                     " any longer, after ", muster::InWords(now - group.since))
                      : absl::StrCat("no rank waits for the group of ", RanksOf(it->first.second),
                                     " at ", it->first.first, " any longer, after ",
                                     muster::InWords(now - group.since))};
    }
    groups_.erase(it);
    return line;
  }
  return std::nullopt;
}

MonoTime GroupCalls::NextDeadline() const {
  MonoTime next = MonoTime::InfiniteFuture();
  if (!tells_waits_) return next;
  for (const auto& [unused, group] : groups_) next = std::min(next, group.next_notice);
  return next;
}

std::vector<GroupCalls::Question> GroupCalls::Questions(MonoTime now) const {
  std::vector<Question> questions;
  for (const auto& [unused, group] : groups_) {
    if (!tells_waits_ || now < group.next_notice) continue;
    for (const auto& [pid, waiting] : group.waiting) {
      questions.push_back({.pid = pid, .port = waiting.call.port});
    }
  }
  return questions;
}

std::vector<GroupCalls::Line> GroupCalls::Tell(const std::map<pid_t, Connecting>& answers,
                                               MonoTime now) {
  std::vector<Line> lines;
  for (auto it = groups_.begin(); it != groups_.end();) {
    Group& group = it->second;
    // A process that has ended waits no more.
    for (const auto& [pid, connecting] : answers) {
      if (connecting == Connecting::kGone) group.waiting.erase(pid);
    }
    if (group.waiting.empty()) {
      it = groups_.erase(it);
      continue;
    }
    if (tells_waits_ && now >= group.next_notice) {
      if (std::optional<Line> line = Notice(it->first, group, answers, now)) {
        lines.push_back(*std::move(line));
        group.is_told = true;
        group.next_notice = now + group.interval;
        group.interval *= 2;
      } else {
        group.next_notice = now + kFirstNotice;
      }
    }
    ++it;
  }
  return lines;
}

std::optional<GroupCalls::Line> GroupCalls::Notice(const Place& place, const Group& group,
                                                   const std::map<pid_t, Connecting>& answers,
                                                   MonoTime now) const {
  std::vector<int> refused, unanswered, connected;
  bool is_at_launcher = false;
  for (const auto& [pid, waiting] : group.waiting) {
    is_at_launcher = is_at_launcher || waiting.call.is_at_launcher;
    const auto answer = answers.find(pid);
    if (answer == answers.end()) continue;
    // Rank 0 hosts the store of the script's own group, and waits for clients.
    const bool hosts = place.second > 0 && waiting.call.rank == 0 && !waiting.call.is_at_launcher;
    std::vector<int>& ranks = hosts || answer->second == Connecting::kConnected ? connected
                              : answer->second == Connecting::kUnanswered       ? unanswered
                                                                                : refused;
    ranks.push_back(waiting.call.rank);
  }
  std::vector<int>& cut_off = refused.empty() ? unanswered : refused;
  std::sort(cut_off.begin(), cut_off.end());
  std::sort(connected.begin(), connected.end());
  const std::string whose = is_at_launcher ? ", the launcher's store" : "";
  const std::string waited = muster::InWords(now - group.since);
  if (!cut_off.empty()) {
    const std::string who = absl::StrCat(
        RanksInWords(cut_off), cut_off.size() == 1 ? " has" : " have", " been waiting for ", waited,
        " in ", CallOf(place.second), ": ",
        refused.empty() ? "no answer from " : "nothing listens at ", place.first, whose,
        refused.empty() ? " (the connection is neither accepted nor refused: a firewall, or the "
                          "address of another network?)"
                        : " (connection refused)");
    return Line{.is_warning = true,
                .text = is_at_launcher || !connected.empty() || place.second == 0
                            ? who
                            : absl::StrCat(who, "; ", WhoIsMissing(place, group))};
  }
  if (is_at_launcher || connected.empty() || place.second == 0) return std::nullopt;
  return Line{
      .is_warning = true,
      .text = absl::StrCat(RanksInWords(connected), connected.size() == 1 ? " has" : " have",
                           " been waiting for ", waited, " in init_process_group at ", place.first,
                           "; ", WhoIsMissing(place, group))};
}

std::string GroupCalls::WhoIsMissing(const Place& place, const Group& group) const {
  const bool host_is_missing = !group.came.contains(0);
  const std::string own = absl::StrCat(" of that group of ", RanksOf(place.second));
  std::vector<int> missing;
  for (int rank = 0; rank < place.second; ++rank) {
    if (!group.came.contains(rank)) missing.push_back(rank);
  }
  if (missing.empty()) {
    return absl::StrCat("all ranks", own, " have called it and connect to each other");
  }
  if (num_nodes_ > 1) {
    const std::vector<int> came(group.came.begin(), group.came.end());
    return absl::StrCat(host_is_missing ? "rank 0, which is to listen there," : RanksInWords(came),
                        own,
                        host_is_missing ? " has not called it on this node"
                                        : " came on this node, and who is missing is on another");
  }
  return absl::StrCat("waiting for ", RanksInWords(missing), own,
                      missing.size() == 1 ? ", which has" : ", which have", " not called it",
                      host_is_missing ? "; rank 0 is to listen there" : "");
}

}  // namespace muster::agent
