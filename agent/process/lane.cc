#include "agent/process/lane.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <deque>
#include <new>
#include <utility>

#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::agent {
namespace {

// Enough to unwind and demangle, and little of the address space, which may be limited (ulimit -v).
constexpr size_t kStackBytes = size_t{1} << 20;
constexpr size_t kThreadNameBytesMax = 15;

struct Start {
  std::string name;
  absl::AnyInvocable<void()> body;
};

void* RunThread(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name.substr(0, kThreadNameBytesMax).c_str());
  start->body();
  return nullptr;
}

}  // namespace

// Signals are the loop's: the thread begins with all of them blocked.
bool StartDetachedThread(const std::string& name, absl::AnyInvocable<void()> body) {
  auto start = std::make_unique<Start>(Start{name, std::move(body)});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool runs = pthread_create(&thread, &attributes, RunThread, start.get()) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (runs) static_cast<void>(start.release());  // the thread owns it now
  return runs;
}

struct Lane::State {
  struct Task {
    absl::Duration patience;
    absl::AnyInvocable<void()> run;
  };
  struct Thread {
    bool is_there = false;
    MonoTime stuck_from = MonoTime::InfiniteFuture();  // that of its task; waiting, it is not stuck
  };

  State(std::string its_name, StartThread its_start)
      : name(std::move(its_name)), start(std::move(its_start)) {}

  // What is waiting has a thread that will take it, now or soon.
  bool HasThreadToCome(MonoTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::any_of(threads.begin(), threads.end(), [now](const Thread& thread) {
      return thread.is_there && now < thread.stuck_from;
    });
  }

  // `self` is this, for the thread.
  void TryToStart(const std::shared_ptr<State>& self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (Thread& thread : threads) {
      if (thread.is_there) continue;
      thread.is_there = start(name, [self, &thread] { self->Run(thread); });
      if (thread.is_there) ++num_free;
      return;
    }
  }

  // False: this thread is to end. Allocates nothing: a thread that has just begun may have no
  // memory.
  bool Take(Thread& thread, Task& task) {
    base::MutexLock lock(mu);
    while (queue.empty() && !ends && num_free == 1) {
      changed.WaitUntil(mu, MonoTime::InfiniteFuture());
    }
    --num_free;
    if (queue.empty()) {  // the lane has ended, or another waits already
      thread = Thread();
      return false;
    }
    task = std::move(queue.front());
    queue.pop_front();
    thread.stuck_from = MonoNow() + task.patience;
    return true;
  }

  void Run(Thread& thread) {
    for (Task task; Take(thread, task); task = Task()) {
      try {
        task.run();
      } catch (const std::bad_alloc&) {
      }
      task = Task();  // what it holds goes before the thread counts as free
      base::MutexLock lock(mu);
      thread.stuck_from = MonoTime::InfiniteFuture();
      ++num_free;
      changed.NotifyAll();
    }
  }

  const std::string name;
  const StartThread start;
  base::Mutex mu;
  base::Condition changed;
  std::deque<Task> queue ABSL_GUARDED_BY(mu);
  std::array<Thread, kThreadsMax> threads ABSL_GUARDED_BY(mu);
  int num_free ABSL_GUARDED_BY(mu) = 0;  // threads that wait, or are about to
  bool ends ABSL_GUARDED_BY(mu) = false;
};

class Lane::Owner {
 public:
  explicit Owner(std::shared_ptr<State> its_state) : state(std::move(its_state)) {}
  ~Owner() {
    base::MutexLock lock(state->mu);
    state->ends = true;
    state->changed.NotifyAll();
  }
  const std::shared_ptr<State> state;
};

Lane::Lane(std::string name, StartThread start)
    : owner_(std::make_shared<Owner>(std::make_shared<State>(std::move(name), std::move(start)))) {
  const std::shared_ptr<State>& state = owner_->state;
  base::MutexLock lock(state->mu);
  state->TryToStart(state);
}

bool Lane::Do(absl::Duration patience, absl::AnyInvocable<void()> task) const {
  const std::shared_ptr<State>& state = owner_->state;
  base::MutexLock lock(state->mu);
  if (state->queue.size() >= kQueuedMax) return false;
  if (state->num_free <= static_cast<int>(state->queue.size())) state->TryToStart(state);
  if (!state->HasThreadToCome(MonoNow())) return false;
  state->queue.push_back({patience, std::move(task)});
  state->changed.NotifyAll();
  return true;
}

}  // namespace muster::agent
