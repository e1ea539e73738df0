#include "agent/core/kept_back.h"

#include <csignal>
#include <utility>
#include <variant>

namespace muster::agent {
namespace {

// What the shell is told at once of an effect that waits; nothing of one that does not.
std::optional<PrepareSignal> PreparationFor(const Effect& effect) {
  if (std::holds_alternative<TellRoundOver>(effect)) return PrepareSignal{};
  const auto* const signal = std::get_if<SignalWorkers>(&effect);
  if (signal == nullptr || signal->signal == SIGKILL) return std::nullopt;
  return PrepareSignal{.signal = signal->signal, .spared = signal->spared};
}

}  // namespace

void KeptBack::Note(const LastCallsChanged& event, MonoTime now) {
  state_ = event.state;
  if (state_.asks_workers || state_.awaits_judge) until_ = Min(until_, now + state_.within);
}

void KeptBack::KeepBack(Turn& turn) {
  if (!KeepsEffects(turn.now)) return;
  for (Effect& effect : turn.effects) {
    std::optional<PrepareSignal> preparation = PreparationFor(effect);
    if (!preparation) continue;
    effects_.push_back(std::exchange(effect, *std::move(preparation)));
  }
}

void KeptBack::Keep(const WorkerExited& exit, MonoTime now) {
  failures_.push_back({now - exit.failure->age, exit});
}

std::vector<Effect> KeptBack::TakeEffects(MonoTime now) {
  if (KeepsEffects(now)) return {};
  return std::exchange(effects_, {});
}

std::vector<WorkerExited> KeptBack::TakeFailures(MonoTime now) {
  std::vector<WorkerExited> exits;
  if (KeepsFailures(now)) return exits;
  for (KeptFailure& kept : std::exchange(failures_, {})) {
    kept.exit.failure->age = now - kept.at;
    hangs::TellWhoEnded(state_.said, *kept.exit.failure);
    exits.push_back(std::move(kept.exit));
  }
  return exits;
}

MonoTime KeptBack::Deadline() const {
  return effects_.empty() && failures_.empty() ? MonoTime::InfiniteFuture() : until_;
}

}  // namespace muster::agent
