// Batches read ahead of the training, on a thread of their own.
#include <array>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/data/batch_draw.h"

namespace muster {
namespace {

// One that the training uses, and three that wait for it.
constexpr int64_t kSlots = 4;

}  // namespace

// Batch n of this rank lives in slot n % kSlots. The thread writes it while filled <= n, the caller
// of Next reads it afterwards until it is released, and only then the thread writes batch
// n + kSlots there: so the batches themselves need no lock.
struct BatchReader::State {
  State(const TokenSource& source, const BatchOptions& options)
      : source(source), options(options) {}

  void ReadAhead();
  // False if the reader is being destroyed.
  bool WaitForRoom(int64_t n);

  // Constant after construction.
  const TokenSource& source;  // outlives the reader (Create)
  const BatchOptions options;

  // See above.
  std::array<Batch, kSlots> slots;

  base::Mutex mu;
  base::Condition changed;
  int64_t filled ABSL_GUARDED_BY(mu) = 0;    // batches that were read
  int64_t given ABSL_GUARDED_BY(mu) = 0;     // batches that Next has returned
  int64_t released ABSL_GUARDED_BY(mu) = 0;  // those that are no longer in use
  absl::Status failure ABSL_GUARDED_BY(mu);  // of batch number `filled`; the thread has ended
  bool stop ABSL_GUARDED_BY(mu) = false;

  std::thread thread;  // last: it uses everything above
};

bool BatchReader::State::WaitForRoom(int64_t n) {
  base::MutexLock lock(mu);
  // No deadline: how long the training takes for a batch is not for the reader to judge.
  while (!stop && n >= released + kSlots) changed.WaitUntil(mu, MonoTime::InfiniteFuture());
  return !stop;
}

void BatchReader::State::ReadAhead() {
  for (int64_t n = 0; WaitForRoom(n); ++n) {
    const int64_t step = options.first_step + n / options.accumulation;
    const int64_t micro_batch = options.rank * options.accumulation + n % options.accumulation;
    absl::Status status = FillBatch(source, options, step, micro_batch, slots[n % kSlots]);
    base::MutexLock lock(mu);
    changed.NotifyAll();
    if (!status.ok()) {
      failure = std::move(status);
      return;
    }
    filled = n + 1;
  }
}

absl::StatusOr<std::unique_ptr<BatchReader>> BatchReader::Create(const TokenSource& source,
                                                                 const BatchOptions& options) {
  MUSTER_RETURN_IF_ERROR(data::ValidateBatchOptions(options, source.num_tokens()));
  auto state = std::make_unique<State>(source, options);
  try {
    state->thread = std::thread([s = state.get()] { s->ReadAhead(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the thread that reads data ahead: ", error.what()));
  }
  return std::unique_ptr<BatchReader>(new BatchReader(std::move(state)));
}

BatchReader::BatchReader(std::unique_ptr<State> state) : state_(std::move(state)) {}

BatchReader::~BatchReader() {
  {
    base::MutexLock lock(state_->mu);
    state_->stop = true;
    state_->changed.NotifyAll();
  }
  state_->thread.join();
}

const BatchOptions& BatchReader::options() const { return state_->options; }

absl::StatusOr<const Batch*> BatchReader::Next() {
  State& s = *state_;
  base::MutexLock lock(s.mu);
  s.released = s.given;
  s.changed.NotifyAll();
  // No deadline: the agent judges a rank that makes no progress.
  while (s.filled == s.given && s.failure.ok()) {
    s.changed.WaitUntil(s.mu, MonoTime::InfiniteFuture());
  }
  if (s.filled == s.given) return s.failure;
  return &s.slots[s.given++ % kSlots];
}

}  // namespace muster
