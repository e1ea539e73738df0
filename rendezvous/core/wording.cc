#include "rendezvous/core/wording.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/process_end.h"

namespace muster::rendezvous {

absl::string_view Nodes(int count) { return count == 1 ? "node" : "nodes"; }

std::string InWords(const WorkerFailure& failure) {
  const std::string how =
      absl::StrFormat("rank %d (local rank %d) on %s %s", failure.rank.value(),
                      failure.local_rank.value(), failure.node_name, HowItEnded(failure));
  if (failure.ended_by.empty()) return how;
  return absl::StrCat(failure.ended_by, "; ", how, ", and is not at fault");
}

}  // namespace muster::rendezvous
