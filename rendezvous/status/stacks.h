// The stacks of a node's ranks, as its agent answers, and those of all nodes merged: ranks with one
// and the same stack are one group.
//
// Pure values and functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::status {

inline constexpr int kStacksSchema = 1;

// Frames are innermost first. Of the main thread.
struct StackGroup {
  std::vector<int> ranks;
  std::vector<std::string>
      python;  // "function at file:line"; empty: it has none, or cannot be read
  std::vector<std::string> native;
  std::string no_native;  // why there is none
};

// What one process does, in words.
struct RankDoing {
  int rank = 0;
  int pid = 0;
  std::string doing;
};

struct StacksOfNode {
  int schema = kStacksSchema;
  std::vector<StackGroup> groups;  // the most common first
  std::vector<RankDoing> ranks;
};

// The stacks of `ranks`, of not more than `bytes_max` as JSON: the outermost frames are left out
// first, then what ranks do.
StacksOfNode MakeStacks(const std::vector<hangs::RankReport>& ranks, size_t bytes_max);
std::string ToJson(const StacksOfNode& stacks);
// Errors: kInvalidArgument: as ParseStatusPage.
absl::StatusOr<StacksOfNode> ParseStacks(absl::string_view json);

// The groups of all nodes. `ranks` of each group are sorted, the most common group comes first; of
// those that are as common, the one of the lowest rank.
std::vector<StackGroup> MergeGroups(const std::vector<StacksOfNode>& nodes);

}  // namespace muster::status
