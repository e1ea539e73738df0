#include "rendezvous/verdict/gatherings.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace muster::verdict {
namespace {

constexpr char kPlace[] = "PyTorch's store";

bool Holds(const std::vector<int>& sorted, int rank) {
  return std::binary_search(sorted.begin(), sorted.end(), rank);
}

bool HasCalledAnything(const RankEvidence& rank) {
  return std::any_of(rank.groups.begin(), rank.groups.end(), [](const GroupRecord& record) {
    return record.num_issued > 0 || !record.operations.empty();
  });
}

void Add(const Gathering& gathering, int group, RankEvidence& rank) {
  const bool waits = Holds(gathering.waiting, rank.rank);
  const bool is_missing = Holds(gathering.missing, rank.rank);
  if ((waits || is_missing) && rank.is_mute && rank.life == Life::kUnreachable) {
    rank.life = Life::kRunning;
  }
  if (is_missing && !(gathering.is_start && HasCalledAnything(rank))) return;
  // Which of its operations the program waits for, a thread of it or all, is not told from there.
  if (waits) rank.tells_waits = false;
  Operation operation{.state = waits ? OperationState::kStarted : OperationState::kDone,
                      .name = gathering.name};
  rank.groups.push_back({.group = group, .num_issued = 1, .operations = {std::move(operation)}});
}

}  // namespace

void GatheringWatch::Listen(std::vector<Gathering> gatherings, MonoTime now) {
  const absl::Duration gap = std::min(now - heard_at_, kGapMax);
  for (Gathering& each : gatherings) {
    each.silent_for = absl::ZeroDuration();
    for (const Gathering& before : gatherings_) {
      if (before.name != each.name || before.missing != each.missing) continue;
      each.silent_for = before.silent_for + std::max(gap, absl::ZeroDuration());
    }
  }
  gatherings_ = std::move(gatherings);
  heard_at_ = now;
}

const std::vector<Gathering>& GatheringWatch::At(MonoTime now) {
  if (now - heard_at_ > kForgotten) gatherings_.clear();
  return gatherings_;
}

std::vector<std::vector<int>> MissingAt(const std::vector<Gathering>& gatherings) {
  std::vector<std::vector<int>> missing;
  for (const Gathering& each : gatherings) missing.push_back(each.missing);
  return missing;
}

std::vector<RankSilence> SilencesOf(const std::vector<Gathering>& gatherings,
                                    const absl::btree_map<int, absl::Duration>& mute) {
  std::vector<RankSilence> out;
  for (const auto& [rank, watched_for] : mute) {
    std::optional<absl::Duration> silence;
    for (const Gathering& each : gatherings) {
      const bool is_missing = Holds(each.missing, rank);
      if (!is_missing && !Holds(each.waiting, rank)) continue;
      const absl::Duration here =
          is_missing ? std::min(each.silent_for, watched_for) : each.silent_for;
      silence = std::min(here, silence.value_or(here));
    }
    if (silence) out.push_back({rank, WatchPhase::kStart, *silence});
  }
  return out;
}

void AddGatherings(const std::vector<Gathering>& gatherings, Evidence& evidence) {
  for (const Gathering& gathering : gatherings) {
    const int index = static_cast<int>(evidence.groups.size());
    Group group{.name = kPlace, .id = static_cast<uint32_t>(index), .is_gathering = true};
    for (RankEvidence& rank : evidence.ranks) {
      if (rank.round != evidence.round) continue;
      group.members.push_back(rank.rank);
      Add(gathering, index, rank);
    }
    evidence.groups.push_back(std::move(group));
  }
}

}  // namespace muster::verdict
