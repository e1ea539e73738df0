// When a link tries again, and when trying is in vain.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "proto/base/backoff.h"
#include "rendezvous/client/connect_failure.h"

namespace muster::rendezvous {

class RetryPolicy {
 public:
  RetryPolicy(const BackoffOptions& backoff, uint64_t jitter_seed)
      : backoff_(backoff), jitter_state_(jitter_seed) {}

  // An attempt has failed. True: the link is to give up. Once the right server has been there
  // nothing is fatal any more: a stranger on its port (another user's musterd, a web server) says
  // nothing about it. It may come back, and how long that is waited for is the agent's orphan
  // time-out.
  bool GivesUp(FailureKind kind);
  void NoteAccepted();
  // The server has said what to do: the next pause is the first again.
  void NoteDirective() { step_ = 0; }
  absl::Duration NextPause();

 private:
  double NextJitter();

  const BackoffOptions backoff_;
  uint64_t jitter_state_;
  int step_ = 0;
  // Refusals since the last success. One of several addresses may answer and another refuse the
  // connection, so only success resets the count.
  int num_refusals_ = 0;
  bool was_accepted_ = false;
};

}  // namespace muster::rendezvous
