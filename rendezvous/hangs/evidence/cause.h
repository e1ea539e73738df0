// The class of a hang's cause: what kind of thing has to be mended.
//
// Diagnose (diagnosis.h) knows it where the calls alone tell; of a rank that never arrived, its
// stack and what it waits for in the kernel tell more (RefineCause).
//
// Pure.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::hangs {

// "never_arrived": for programs.
absl::string_view ToString(Cause cause);
// "waiting for its data": for people.
absl::string_view InWords(Cause cause);

// What the calls alone tell; of a mismatch nothing, since the finding does not say in what.
Cause CauseOf(Finding finding);

// The cause of `diagnosis`, once `ranks` (those at fault among them) have been looked into. Of
// several at fault the first that tells.
Cause RefineCause(const Diagnosis& diagnosis, const std::vector<RankReport>& ranks);

}  // namespace muster::hangs
