// Communicator::Register of back ends that have something to register: on all ranks or on none, and
// its end.
//
// NCCL leaves undefined what becomes of a call in which some ranks' buffers are registered and
// others' are not (its user guide, "User Buffer Registration"). So a rank whose own registration
// went well learns from the others whether it stays, by a small all-reduce of the group; where it
// does not, the first rank that failed says why.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "muster/registration.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// What `register_here` has registered on this rank, if it went well on all ranks of `group`, which
// call this together.
//
// Errors: that of the first rank whose `register_here` has failed, on all ranks alike; nothing is
//         registered then. The group's: as an operation's.
// Cost:   an all-reduce of one number; a broadcast of half a KiB where a rank has failed.
absl::StatusOr<Registration> RegisterOnAllRanks(
    Communicator& group, absl::FunctionRef<absl::StatusOr<Registration>()> register_here);

// The registrations of one communicator, which they may outlive without a word to it.
//
// Threads: safe.
class Registrations {
 public:
  // Calls `give_up` at its end, unless Close was called before; not while Close runs.
  Registration Add(std::function<void()> give_up);
  // The communicator ends. How many were left.
  int Close();

 private:
  struct Shared {
    base::Mutex mu;
    bool is_closed ABSL_GUARDED_BY(mu) = false;
    int num_left ABSL_GUARDED_BY(mu) = 0;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace muster::comm
