#include "worker_runtime/train/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "proto/base/status_macros.h"

namespace muster::train {
namespace {

// A handler reaches nothing but globals; this is the only one. Each StopSignal begins with zero.
std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "it is written by a signal handler");

void Note(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) return;
  // A second signal, of the other kind: SA_RESETHAND covers the same kind.
  ::signal(signal, SIG_DFL);
  raise(signal);
}

void SetHandlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction inherited;
    // Ignored for a process in a shell's background, and then it stays so.
    MUSTER_CHECK(sigaction(signal, nullptr, &inherited) == 0);
    if (inherited.sa_handler != SIG_IGN) MUSTER_CHECK(sigaction(signal, &action, nullptr) == 0);
  }
}

}  // namespace

StopSignal::StopSignal() {
  first_signal = 0;
  SetHandlers(Note);
}

void StopSignal::Release() { SetHandlers(SIG_DFL); }

int StopSignal::received() const { return first_signal; }

void EndBySignal(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
  raise(signal);
  _exit(128 + signal);
}

void StopVote::Begin(int own_signal) {
  signal_[0] = own_signal;
  work_ = world_.AllReduce(BufferOf(signal_), {.op = ReduceOp::kMax});
}

absl::StatusOr<int> StopVote::End() {
  MUSTER_RETURN_IF_ERROR(work_.Wait());
  return signal_[0];
}

}  // namespace muster::train
