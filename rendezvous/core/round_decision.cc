#include "rendezvous/core/round_decision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/core/network_split.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

const std::string& NameOf(const JobState& state, Incarnation node) {
  return state.nodes.at(node).report.node.name;
}

int NumJoined(const JobState& state) { return static_cast<int>(state.joined.size()); }

// The nodes that have joined, and those held back, who count when the round would be too small
// without them.
int NumAtHand(const JobState& state) {
  return static_cast<int>(state.joined.size() + state.held_back.size());
}

// Missing nodes: at most kMaxMissingNamed names, and how many there are in all.
struct Missing {
  std::vector<std::string> names;
  int count = 0;
  bool are_ranks = false;
};

Missing MissingRanks(const JobState& state) {
  Missing missing{.count = static_cast<int>(state.ranks.missing.size()), .are_ranks = true};
  for (const int rank : state.ranks.missing) {
    if (static_cast<int>(missing.names.size()) == kMaxMissingNamed) break;
    const size_t place = static_cast<size_t>(rank);
    const bool is_named = place < state.ranks.names.size();
    missing.names.push_back(is_named ? absl::StrCat(rank, " (", state.ranks.names[place], ")")
                                     : absl::StrCat(rank));
  }
  return missing;
}

Missing FindMissing(const JobState& state) {
  if (state.settings->is_static) return MissingRanks(state);
  Missing missing{.count = std::max(0, state.settings->min_nodes - NumJoined(state))};
  // Stops as soon as enough are named: a round of ten thousand nodes is asked for at each report.
  const size_t wanted = std::min(kMaxMissingNamed, missing.count);
  for (const Incarnation node : state.in_round) {
    if (missing.names.size() == wanted) return missing;
    missing.names.push_back(NameOf(state, node));
  }
  for (const auto& [node, name] : state.lost) {
    if (missing.names.size() == wanted) return missing;
    if (!state.nodes.contains(node)) missing.names.push_back(name);
  }
  return missing;
}

std::string MissingInWords(const Missing& missing) {
  if (missing.names.empty()) return absl::StrCat(missing.count, " more ", Nodes(missing.count));
  const std::string names = NamesInWords(missing.names, missing.count);
  if (!missing.are_ranks) return names;
  return absl::StrCat(missing.count == 1 ? "node rank " : "node ranks ", names);
}

std::string WantedInWords(const RendezvousSettings& settings) {
  if (settings.min_nodes == settings.max_nodes) {
    return absl::StrCat(settings.max_nodes, " ", Nodes(settings.max_nodes));
  }
  return absl::StrCat(settings.min_nodes, " to ", settings.max_nodes, " nodes");
}

// Why nodes that are there do not join: "; node2 does not pass its check: …". Empty: all could.
std::string UnfitText(const JobState& state) {
  std::string text;
  int count = 0;
  for (const Incarnation node : state.outside.unfit) {
    if (++count > kMaxMissingNamed) break;
    absl::StrAppend(&text, "; ", NameOf(state, node),
                    " does not pass its check: ", state.nodes.at(node).report.check->failure);
  }
  const int more = static_cast<int>(state.outside.unfit.size()) - kMaxMissingNamed;
  if (more > 0) absl::StrAppend(&text, "; nor do ", more, " more");
  return text;
}

std::string TimeoutReason(const JobState& state, MonoTime now) {
  std::vector<std::string> present;
  for (const auto& [unused, node] : state.joined) {
    if (static_cast<int>(present.size()) == kMaxPresentNamed) break;
    const std::string age = InWords(now - state.nodes.at(node).first_seen);
    present.push_back(
        absl::StrCat(NameOf(state, node), present.empty() ? " (joined " : " (", age, " ago)"));
  }
  const int num_joined = NumJoined(state);
  const RendezvousSettings& settings = *state.settings;
  const bool is_fixed = settings.min_nodes == settings.max_nodes;
  std::string text =
      absl::StrCat(num_joined, " of ", is_fixed ? "" : "at least ", settings.min_nodes, " ",
                   Nodes(settings.min_nodes), " joined within ", InWords(settings.join_timeout));
  if (num_joined > 0) absl::StrAppend(&text, ": ", NamesInWords(present, num_joined));
  absl::StrAppend(&text, "; missing: ", MissingInWords(FindMissing(state)), UnfitText(state));
  for (const auto& [unused, name] : state.lost) {
    if (settings.is_static) absl::StrAppend(&text, " (", name, " was lost)");
    if (settings.is_static) break;
  }
  return absl::StrCat(text, ". Start the missing nodes or raise --rdzv_conf=join_timeout");
}

RoundDecision WaitUntil(MonoTime deadline, std::string text) {
  return {.reason = std::move(text), .next_deadline = deadline};
}

RoundDecision Complete(std::string reason) {
  return {.verdict = RoundVerdict::kComplete, .reason = std::move(reason)};
}

std::string StoppingNodes(const JobState& state) {
  std::vector<std::string> names;
  for (const Incarnation node : state.in_round) {
    if (static_cast<int>(names.size()) == kMaxMissingNamed) break;
    names.push_back(NameOf(state, node));
  }
  return NamesInWords(names, static_cast<int>(state.in_round.size()));
}

std::string StoppingText(const JobState& state) {
  return absl::StrCat("waiting for ", StoppingNodes(state), " to stop ",
                      state.in_round.size() == 1 ? "its" : "their", " workers (",
                      state.forming_reason, ")");
}

// Enough nodes are there, but others keep them waiting.
std::string NotStoppedReason(const JobState& state, absl::Duration timeout) {
  return absl::StrCat(StoppingNodes(state), " did not stop ",
                      state.in_round.size() == 1 ? "its" : "their", " workers within ",
                      InWords(timeout), " (", state.forming_reason, ")");
}

std::string MissingText(const JobState& state) {
  const RendezvousSettings& settings = *state.settings;
  const Missing missing = FindMissing(state);
  std::string text = absl::StrCat("waiting for ", missing.count, " more of ",
                                  WantedInWords(settings), missing.names.empty() ? "" : " (");
  if (!missing.names.empty()) {
    absl::StrAppend(&text, missing.are_ranks ? "" : "in the place of ", MissingInWords(missing),
                    ")");
  }
  return text + UnfitText(state);
}

std::string AwayText(const JobState& state) {
  std::vector<std::string> names;
  for (const auto& [key, unused] : state.away) {
    if (static_cast<int>(names.size()) == kMaxMissingNamed) break;
    names.push_back(key.first);
  }
  const int count = static_cast<int>(state.away.size());
  return absl::StrCat("waiting for ", NamesInWords(names, count), ", which lost ",
                      count == 1 ? "its connection, until its lease ends"
                                 : "their connections, until their leases end");
}

std::string CheckingText(const JobState& state, absl::Duration left) {
  std::vector<std::string> names;
  for (const Incarnation node : state.outside.checking) {
    if (static_cast<int>(names.size()) == kMaxMissingNamed) break;
    names.push_back(NameOf(state, node));
  }
  const int count = static_cast<int>(state.outside.checking.size());
  return absl::StrCat("waiting for the check of ", NamesInWords(names, count), ", for ",
                      InWords(left), " at most");
}

// The verdict once nobody is stopping and at least min_nodes are at hand.
RoundDecision DecideWithEnough(const JobState& state, MonoTime now) {
  const RendezvousSettings& settings = *state.settings;
  const int joined = NumJoined(state);
  const int at_hand = std::max(joined, std::min(settings.min_nodes, NumAtHand(state)));
  const MonoTime earliest = std::max(state.not_before, state.young_until);
  const MonoTime last_call_ends = state.last_call_since.value_or(now) + settings.last_call_timeout;
  std::string reason;
  if (joined >= settings.max_nodes) {
    reason = absl::StrCat("all ", settings.max_nodes, " ", Nodes(settings.max_nodes), " joined");
  } else if (state.round != kNoRound && state.outside.survivors_joined >= settings.min_nodes) {
    if (!state.away.empty()) return WaitUntil(MonoTime::InfiniteFuture(), AwayText(state));
    if (!state.outside.checking.empty() && now < last_call_ends) {
      return WaitUntil(std::max(last_call_ends, earliest),
                       CheckingText(state, last_call_ends - now));
    }
    reason = absl::StrCat(joined, " of ", WantedInWords(settings), " joined again");
  } else {
    const MonoTime starts = std::max(last_call_ends, earliest);
    if (now < starts) {
      return WaitUntil(starts, absl::StrCat(at_hand, " of ", WantedInWords(settings),
                                            " joined; last call ends in ", InWords(starts - now)));
    }
    reason = absl::StrCat("last call elapsed with ", at_hand, " of ", WantedInWords(settings));
  }
  if (now < state.not_before) {
    return WaitUntil(
        earliest,
        absl::StrCat("the next round starts in ", InWords(state.not_before - now), ", because ",
                     state.quick_ends, " rounds in a row ended within ten seconds"));
  }
  if (now < state.young_until) {
    return WaitUntil(earliest,
                     absl::StrCat("the server has just started; nodes that it served before have ",
                                  InWords(state.young_until - now), " to come back"));
  }
  return Complete(std::move(reason));
}

}  // namespace

bool IsEnough(const JobState& state) {
  const RendezvousSettings& settings = *state.settings;
  if (settings.is_static) return NumJoined(state) >= settings.max_nodes;
  return NumAtHand(state) >= settings.min_nodes;
}

RoundDecision DecideRound(const JobState& state, MonoTime now) {
  const RendezvousSettings& settings = *state.settings;
  const bool are_stopping = !state.in_round.empty();
  if (!are_stopping && IsEnough(state)) return DecideWithEnough(state, now);
  absl::Duration timeout = settings.join_timeout;
  if (are_stopping) timeout = std::max(timeout, settings.shutdown_timeout + kStopSlack);
  const MonoTime deadline = state.forming_since + timeout;
  if (now >= deadline) {
    return {
        .verdict = RoundVerdict::kTimedOut,
        .reason = IsEnough(state) ? NotStoppedReason(state, timeout) : TimeoutReason(state, now)};
  }
  return WaitUntil(deadline, are_stopping ? StoppingText(state) : MissingText(state));
}

std::vector<Incarnation> ReadyNodes(const JobState& state) {
  std::vector<Incarnation> survivors;
  std::vector<Incarnation> others;
  for (const auto& [unused, node] : state.joined) {
    (state.assignments.contains(node) ? survivors : others).push_back(node);
  }
  std::sort(survivors.begin(), survivors.end(), [&](Incarnation a, Incarnation b) {
    return state.assignments.at(a).node_rank < state.assignments.at(b).node_rank;
  });
  survivors.insert(survivors.end(), others.begin(), others.end());
  return survivors;
}

std::vector<Incarnation> ChooseMembers(const JobState& state) {
  const size_t max_nodes = static_cast<size_t>(state.settings->max_nodes);
  const size_t min_nodes = static_cast<size_t>(state.settings->min_nodes);
  std::vector<Incarnation> ready = ReadyNodes(state);
  const auto choose = [&](std::vector<Incarnation> nodes) {
    if (nodes.size() > max_nodes) nodes.resize(max_nodes);
    for (const auto& [unused, node] : state.held_back) {
      if (nodes.size() >= min_nodes) break;
      nodes.push_back(node);
    }
    return nodes;
  };
  const std::vector<Incarnation> chosen = ThoseTogether(state, choose(ThoseTogether(state, ready)));
  return chosen.size() >= min_nodes ? chosen : choose(std::move(ready));
}

}  // namespace muster::rendezvous
