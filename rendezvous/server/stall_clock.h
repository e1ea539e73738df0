// The server's clock without its own stalls: a server that was stopped or starved has not listened
// meanwhile, so that time counts against no lease.
//
// Threads: compatible; pure.
#pragma once

#include "proto/base/mono_time.h"

namespace muster::rendezvous {

class StallClock {
 public:
  // Later than expected by more than this is a stall; less is scheduling.
  static constexpr absl::Duration kTolerance = absl::Milliseconds(100);

  // `real` by the machine's clock, as the job table is to see it. Both must not go back.
  MonoTime Now(MonoTime real) {
    if (real > expected_ + kTolerance) {
      stalled_ += real - expected_;
      expected_ = MonoTime::InfiniteFuture();
    }
    return real - stalled_;
  }

  // The loop will call Now at `real` at the latest, unless it stalls.
  void Expect(MonoTime real) { expected_ = real; }

  // When `seen`, an instant of Now, comes by the machine's clock.
  MonoTime ToReal(MonoTime seen) const { return seen.is_infinite() ? seen : seen + stalled_; }

 private:
  MonoTime expected_ = MonoTime::InfiniteFuture();
  absl::Duration stalled_;
};

}  // namespace muster::rendezvous
