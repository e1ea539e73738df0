#include "rendezvous/hangs/evidence/gatherings.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace muster::hangs {
namespace {

bool IsListed(const std::vector<int>& sorted, int rank) {
  return std::binary_search(sorted.begin(), sorted.end(), rank);
}

bool HasCalledAnything(const RankEvidence& rank) {
  return std::any_of(rank.groups.begin(), rank.groups.end(), [](const GroupRecord& record) {
    return record.num_issued > 0 || !record.operations.empty();
  });
}

// Whether the rank has met others, in a collective that is done. Barriers do not count: over NCCL
// each rank makes its groups alone, and that reads as a barrier.
bool HasMetOthers(const RankEvidence& rank) {
  return std::any_of(rank.groups.begin(), rank.groups.end(), [](const GroupRecord& record) {
    return std::any_of(record.operations.begin(), record.operations.end(), [](const auto& op) {
      return op.state == OperationState::kDone && op.kind != OperationKind::kBarrier;
    });
  });
}

void Add(const Gathering& gathering, int group, RankEvidence& rank) {
  const bool waits =
      IsListed(gathering.waiting, rank.rank) && !(gathering.is_start && HasMetOthers(rank));
  const bool is_missing = IsListed(gathering.missing, rank.rank);
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
      const bool is_missing = IsListed(each.missing, rank);
      if (!each.is_start || (!is_missing && !IsListed(each.waiting, rank))) continue;
      silence = is_missing ? std::min(each.silent_for, watched_for) : each.silent_for;
    }
    if (silence) out.push_back({rank, WatchPhase::kStart, *silence});
  }
  return out;
}

absl::Duration SilenceAtStart(const std::vector<Gathering>& gatherings) {
  absl::Duration longest;
  for (const Gathering& each : gatherings) {
    if (each.is_start) longest = std::max(longest, each.silent_for);
  }
  return longest;
}

void MarkToldByStore(const std::vector<Gathering>& gatherings, std::vector<RankReport>& reports) {
  for (RankReport& report : reports) {
    const bool is_told = std::any_of(gatherings.begin(), gatherings.end(), [&](const auto& each) {
      return each.is_start &&
             (IsListed(each.missing, report.rank) || IsListed(each.waiting, report.rank));
    });
    if (is_told && report.told_by == ToldBy::kUnknown) report.told_by = ToldBy::kTorchStore;
  }
}

void AddGatherings(const std::vector<Gathering>& gatherings, Evidence& evidence) {
  for (const Gathering& gathering : gatherings) {
    const int index = static_cast<int>(evidence.groups.size());
    Group group{.id = static_cast<uint32_t>(index), .is_gathering = true};
    for (RankEvidence& rank : evidence.ranks) {
      if (rank.round != evidence.round) continue;
      group.members.push_back(rank.rank);
      Add(gathering, index, rank);
    }
    evidence.groups.push_back(std::move(group));
  }
}

}  // namespace muster::hangs
