// Holds back what a server with durable state has decided until it is durable: what has left it is
// true also after its death. Turns are written in their order, several at a time where the disk is
// slow.
//
// Threads: compatible; pure.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "rendezvous/core/job_table.h"

namespace muster::rendezvous {

class EffectGate {
 public:
  // Beyond this many, of the directives to one agent only the newest is kept: each is a complete
  // statement.
  static constexpr size_t kPruneAt = 100000;

  struct Passed {
    std::vector<JobTable::JobEffect> leaving;   // now, in this order
    std::vector<JobTable::JobEffect> to_write;  // KeepJob of each
    uint64_t ticket = 0;                        // of what is to be written
  };
  // Takes the effects of one turn.
  Passed Push(std::vector<JobTable::JobEffect> effects);

  // Nothing of what follows leaves before `OnDurable` of this ticket: the server's own term is not
  // durable yet.
  uint64_t Hold() { return ++newest_; }

  // All that was to be written up to `ticket` is durable. What may leave now, in this order.
  std::vector<JobTable::JobEffect> OnDurable(uint64_t ticket);

  size_t num_held() const { return held_.size(); }
  // Whether something that was decided for `job` has not left.
  bool Holds(const JobKey& job) const;
  // Whether the server's own term is durable.
  bool is_term_durable() const { return durable_ > 0; }

 private:
  struct Held {
    uint64_t ticket = 0;
    JobTable::JobEffect effect;
  };
  void Prune();

  uint64_t newest_ = 0;
  uint64_t durable_ = 0;
  std::deque<Held> held_;
  size_t prune_at_ = kPruneAt;
};

}  // namespace muster::rendezvous
