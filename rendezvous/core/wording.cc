#include "rendezvous/core/wording.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/process_end.h"

namespace muster::rendezvous {

absl::string_view Nodes(int count) { return count == 1 ? "node" : "nodes"; }

std::string InWords(const WorkerFailure& failure) {
  return absl::StrFormat("rank %d (local rank %d) on %s %s", failure.rank.value(),
                         failure.local_rank.value(), failure.node_name, HowItEnded(failure));
}

}  // namespace muster::rendezvous
