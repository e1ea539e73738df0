// NCCL communicators of a group some of whose ranks were in an earlier one: shrunk from that one
// where all agree that they can (shrink_agreement.h), else connected.
//
// Included in this folder alone: it brings in nccl.h.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/store.h"
#include "worker_runtime/comm/nccl/nccl_ranks.h"

namespace muster::comm {

// Says what this rank was in an earlier group, which it has left: revoked, or aborted where that
// cannot be. Null: it is new; it may say nothing where no other rank can have been in one. Called
// before the ranks of the new group meet.
//
// Errors: the store's.
absl::Status SayWhatItWas(const NcclRanks* former, Store& store, const NcclRanksOptions& options);

// Once they have met: as NcclRanks::Connect, by shrinking `former` if that comes off on all ranks,
// in at most half of the time that is left. `former` (null: this rank is new) has ended then,
// either way.
//
// Errors: those of Connect and of ShrinkAgreement.
// Cost:   one key in the store more than Connect where nobody was in an earlier group.
absl::StatusOr<std::unique_ptr<NcclRanks>> ShrinkOrConnect(
    std::shared_ptr<const NcclLibrary> library, std::unique_ptr<NcclRanks> former, Store& store,
    const NcclRanksOptions& options);

}  // namespace muster::comm
