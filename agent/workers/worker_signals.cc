#include "agent/workers/worker_signals.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "agent/machine/descendants.h"
#include "proto/base/mono_time.h"

namespace muster::agent {
namespace {

constexpr int kSignalSpreadMs = 50;  // between the first and the last process of a step

}  // namespace

WorkerSignals::WorkerSignals(asio::io_context& loop, WorkerRoster& roster, GuardianClient& guardian,
                             bool may_reach_workers)
    : roster_(roster), guardian_(guardian), may_reach_workers_(may_reach_workers), timer_(loop) {}

void WorkerSignals::StartRound() {
  timer_.cancel();
  SendSpreading();
  received_.clear();
}

void WorkerSignals::NoteReceived(int signal) {
  if (may_reach_workers_) received_.insert(signal);
}

void WorkerSignals::Prepare(const PrepareSignal& effect) {
  roster_.NoteSignal(effect.signal, effect.spared);
}

void WorkerSignals::Send(const SignalWorkers& effect) {
  roster_.NoteSignal(effect.signal, effect.spared);
  // Another node's word that the job ends may come before the signal that ended it there.
  const bool may_come = may_reach_workers_ && effect.signal == SIGTERM;
  const bool may_have_it = received_.erase(effect.signal) > 0 || may_come;
  if (may_have_it) return SendUnlessTheyHaveIt(effect);
  SendNow(effect);
}

// The guardian takes no signals, so one that was meant for all of us waits in it. It may come a
// little later than ours.
void WorkerSignals::SendUnlessTheyHaveIt(const SignalWorkers& effect) {
  spreading_.push_back(effect);
  if (spreading_.size() > 1) return;
  timer_.expires_after(std::chrono::milliseconds(kSignalSpreadMs));
  timer_.async_wait([this](const asio::error_code& error) {
    // A cancelled wait whose time was up ends without an error.
    const bool is_over = timer_.expiry() <= asio::steady_timer::clock_type::now();
    if (!error && is_over) SendSpreading();
  });
}

void WorkerSignals::SendSpreading() {
  for (const SignalWorkers& spread : std::exchange(spreading_, {})) {
    if (!HasPendingSignal(guardian_.pid(), spread.signal)) SendNow(spread);
  }
}

void WorkerSignals::SendNow(const SignalWorkers& effect) {
  const int signal = effect.signal;
  const absl::Duration group_after = std::max(effect.group_at - MonoNow(), absl::ZeroDuration());
  for (const auto& [id, worker] : roster_.workers()) {
    if (absl::c_linear_search(effect.spared, worker.local_rank)) continue;
    guardian_.SignalGroup(id, signal, group_after);
    // The last rung does not depend on the guardian. The start time makes sure that the pid, and
    // with it the group, is still the worker's.
    if (signal != SIGKILL || worker.start_time == 0) continue;
    const std::optional<ProcessInfo> now = ReadProcess(worker.pid);
    if (now && now->start_time == worker.start_time && !KillGroupButTrackers(worker.pid)) {
      ::kill(-worker.pid, SIGKILL);
    }
  }
}

void WorkerSignals::TellWindowSize() {
  for (const auto& [id, worker] : roster_.workers()) guardian_.SignalGroup(id, SIGWINCH);
}

void WorkerSignals::End(RunningWorker* worker, const std::string& why) {
  if (worker == nullptr) return;
  worker->why_ended = why;
  worker->signals.push_back(SIGKILL);
  guardian_.SignalGroup(worker->id, SIGKILL);
}

}  // namespace muster::agent
