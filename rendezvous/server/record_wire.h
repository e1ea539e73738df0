// The form on disk of what is kept of a job: proto/record.proto. Kept by state_file.h.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

std::string EncodeRound(const RoundRecord& round);
// `now` is when the record is kept, by the clock of its instants.
std::string EncodeProgress(const ProgressRecord& progress, MonoTime now);

// `kept_at` is when the record was kept, by the reader's clock.
//
// Errors: kDataLoss: no record of this version, or one that contradicts itself.
absl::StatusOr<JobRecord> DecodeRecord(const std::string& round, const std::string& progress,
                                       MonoTime kept_at);

}  // namespace muster::rendezvous
