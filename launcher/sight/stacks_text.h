// The stacks of a job's ranks as text: "ranks 0-6: ...", "rank 7: ...".
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "proto/base/inquiry.h"
#include "rendezvous/status/stacks.h"

namespace muster::launcher {

// The groups of all nodes, each with its Python and native frames, and who has not answered. A body
// that cannot be read counts as no answer.
std::string StacksText(const std::vector<InquiryPart>& parts);
// {"schema", "groups", "ranks", "unanswered": [{"node", "ranks", "why"}]}
std::string StacksJson(const std::vector<InquiryPart>& parts);

// "node2 (ranks 4-7): its agent does not answer". Lines, "" if all have answered.
std::string UnansweredText(const std::vector<InquiryPart>& parts);

}  // namespace muster::launcher
