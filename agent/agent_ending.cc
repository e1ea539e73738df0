#include "agent/agent_ending.h"

#include <utility>

#include "agent/machine/descendants.h"
#include "agent/process/runtime_directory.h"

namespace muster::agent {
namespace {

// After a second interrupt, the end does not wait for the process that removes what workers left.
constexpr absl::Duration kHastyFarewell = absl::Milliseconds(100);
constexpr int kSweepTimeoutMs = 5000;

}  // namespace

AgentEnding::AgentEnding(asio::io_context& loop, AgentEndingOptions options,
                         GuardianClient& guardian, rendezvous::RendezvousLink& link)
    : options_(std::move(options)), guardian_(guardian), link_(link), mailbox_(loop) {}

void AgentEnding::Begin(const Finish& effect) {
  outcome_ = effect.outcome;
  using IfLate = GuardianClient::IfLate;
  const IfLate if_late = effect.in_haste ? IfLate::kLeave : IfLate::kKill;
  guardian_.BeginShutdown(effect.in_haste ? kHastyFarewell : kFarewell, if_late,
                          [this, if_late](bool ended) {
                            if (ended || if_late == IfLate::kLeave) {
                              OnGuardianEnded();
                            } else {
                              EndDescendants([this] { OnGuardianEnded(); });
                            }
                          });
  link_.Close(kFarewell, [this] {
    link_is_closed_ = true;
    FinishIfAllIsClosed();
  });
}

void AgentEnding::OnGuardianEnded() {
  RemoveOwnedPath(options_.runtime_directory);
  options_.settle_run_directory([this] {
    run_directory_is_settled_ = true;
    FinishIfAllIsClosed();
  });
}

void AgentEnding::FinishIfAllIsClosed() {
  if (!run_directory_is_settled_ || !link_is_closed_) return;
  const auto on_finished = std::exchange(options_.on_finished, nullptr);
  if (on_finished) on_finished(*outcome_);
}

void AgentEnding::EndDescendants(std::function<void()> then) {
  // It touches nothing of this object, which may go before it.
  const auto sweep = [mailbox = mailbox_, then = std::move(then)] {
    KillOwnDescendants(kSweepTimeoutMs);
    mailbox.Post(then);
  };
  if (!sweeping_.Do(absl::Milliseconds(2 * kSweepTimeoutMs), sweep)) sweep();
}

}  // namespace muster::agent
