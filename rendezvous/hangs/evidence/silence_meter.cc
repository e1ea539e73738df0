#include "rendezvous/hangs/evidence/silence_meter.h"

#include <algorithm>
#include <utility>

namespace muster::hangs {

void SilenceMeter::StartRound() {
  ranks_.clear();
  mute_.clear();
  last_listened_.reset();
}

WatchPhase SilenceMeter::PhaseOf(const Pulse& pulse) {
  if (pulse.phase == Phase::kSave || pulse.phase == Phase::kLoad) return WatchPhase::kCheckpoint;
  if (pulse.phase == Phase::kEvaluate) return WatchPhase::kEvaluation;
  if (pulse.phase == Phase::kEnd) return WatchPhase::kEnd;
  if (pulse.phase == Phase::kStarting) {
    return pulse.has_operations ? WatchPhase::kStep : WatchPhase::kStart;
  }
  return pulse.num_steps > 1 ? WatchPhase::kStep : WatchPhase::kFirstStep;
}

void SilenceMeter::Listen(const std::vector<Pulse>& pulses, MonoTime now,
                          const std::vector<RankSilence>& of_mute) {
  absl::Duration gap;
  if (last_listened_ && now > *last_listened_) gap = std::min(now - *last_listened_, kGapMax);
  last_listened_ = now;
  absl::erase_if(ranks_, [](const auto& entry) { return entry.second.is_mute; });
  for (const Pulse& pulse : pulses) {
    if (pulse.is_told) {
      mute_.erase(pulse.rank);
      Hear(pulse, gap);
    } else {  // also where it told something before: what it does now is not known
      ranks_.erase(pulse.rank);
      mute_[pulse.rank] += gap;
    }
  }
  for (const RankSilence& each : of_mute) {
    ranks_.try_emplace(each.rank, RankState{.phase = each.phase,
                                            .silent_for = each.silent_for,
                                            .watched_for = each.silent_for,
                                            .is_mute = true});
  }
}

void SilenceMeter::Hear(const Pulse& pulse, absl::Duration gap) {
  const auto [found, is_new] = ranks_.try_emplace(pulse.rank);
  RankState& state = found->second;
  if (!is_new && state.pulse.token == pulse.token) {
    state.watched_for += gap;
    state.silent_for = std::max(state.silent_for, state.watched_for - pulse.age);
    state.has_waited = state.has_waited || pulse.is_waiting;
    return;
  }
  const WatchPhase before = std::exchange(state.phase, PhaseOf(pulse));
  const absl::Duration silence = std::exchange(state.watched_for, absl::ZeroDuration()) + gap;
  state.silent_for = absl::ZeroDuration();
  const bool has_waited = std::exchange(state.has_waited, pulse.is_waiting);
  state.pulse = pulse;
  if (!is_new && before == state.phase && !has_waited) history_.Learn(before, silence);
}

void SilenceMeter::Finish(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  const RankState& state = found->second;
  if (state.phase == WatchPhase::kEnd && !state.has_waited) {
    history_.Learn(state.phase, state.watched_for);
  }
}

std::vector<RankSilence> SilenceMeter::Silences() const {
  std::vector<RankSilence> out;
  for (const auto& [rank, state] : ranks_) out.push_back({rank, state.phase, state.silent_for});
  return out;
}

absl::Duration SilenceMeter::SilenceOf(int rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? absl::ZeroDuration() : found->second.silent_for;
}

bool SilenceMeter::IsSomebodySilent(absl::Duration least) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& entry) { return entry.second.watched_for >= least; });
}

}  // namespace muster::hangs
