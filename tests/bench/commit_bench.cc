// A worker that measures how its job's server answers; tests/bench/server_bench.py starts it.
//
//   commit_bench SECONDS
//
// Commits checkpoints one after the other for so long and prints "rate N", commits per second. Then
// it asks every millisecond whether it may publish, and prints "lost T" when it may not any more
// and "back T" when it may again, in seconds of the monotonic clock, until its standard input ends.
#include <poll.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "muster/runtime.h"
#include "proto/base/mono_time.h"

namespace muster {
namespace {

double Rate(Runtime& runtime, absl::Duration how_long, int64_t& step) {
  const MonoTime begin = MonoNow();
  int64_t commits = 0;
  while (MonoNow() < begin + how_long) commits += runtime.CommitCheckpoint(++step).ok() ? 1 : 0;
  return static_cast<double>(commits) / absl::ToDoubleSeconds(MonoNow() - begin);
}

// Seconds of the clock that Python's time.monotonic() reads.
double Now() { return absl::ToDoubleSeconds(MonoNow().since_zero()); }

int Main(absl::Duration how_long) {
  auto runtime = Runtime::FromEnvironment();
  if (!runtime.ok()) return 1;
  int64_t step = 0;
  while (!(*runtime)->CommitCheckpoint(++step).ok()) absl::SleepFor(absl::Milliseconds(1));
  std::printf("rate %.1f\n", Rate(**runtime, how_long, step));
  std::fflush(stdout);
  bool may = true;
  pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
  while (poll(&input, 1, 1) == 0) {
    const bool may_now = (*runtime)->CommitCheckpoint(++step).ok();
    if (may_now != may) std::printf("%s %.6f\n", may_now ? "back" : "lost", Now());
    std::fflush(stdout);
    may = may_now;
  }
  return (*runtime)->Finish(step).ok() ? 0 : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  return muster::Main(absl::Seconds(argc > 1 ? std::atof(argv[1]) : 5));
}
