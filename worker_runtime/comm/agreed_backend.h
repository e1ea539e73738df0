// Which back end the ranks of a group meet over. Nodes differ in their GPUs, and a rank that sees
// one GPU cannot know who else uses it: ranks say which one is theirs, and all follow rank 0.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/store.h"
#include "worker_runtime/comm/meeting.h"

namespace muster::comm {

inline constexpr char kGloo[] = "gloo";
inline constexpr char kNccl[] = "nccl";

// What one rank says.
struct OwnBackend {
  std::string asked;      // gloo or nccl; empty: the best that all ranks can use
  std::string gpu;        // the UUID of its GPU; empty: not known, and not compared
  std::string hindrance;  // why it cannot use nccl, behind "rank 3 "; empty: it can
};

// What a communicator is made by.
struct AgreedBackend {
  std::string name;   // by the registry's names; empty: it was made otherwise, by Split for one
  std::string asked;  // of MakeCommunicator, which may be given no name
  std::string note;   // for people: why a rank with a GPU that asked for no name does not have nccl
};

// Why the ranks cannot all use nccl, for people; empty: they can. NCCL has one rank for each GPU,
// and takes instances of MIG for the GPU that they are parts of: so do the UUIDs.
//
// Threads: pure.
std::string WhyNotNccl(absl::Span<const OwnBackend> ranks);

// All ranks of a group call it, of two at least. A rank that cannot have nccl waits for nobody.
//
// Errors: kInvalidArgument: nccl was asked for by name, and ranks share a GPU, or one cannot have
//         it: names them. Those of DecideTogether.
// Cost:   that of DecideTogether; one key for a rank that waits for nobody.
absl::StatusOr<AgreedBackend> AgreeOnBackend(Store& store, const MeetingOptions& options,
                                             const OwnBackend& own);

}  // namespace muster::comm
