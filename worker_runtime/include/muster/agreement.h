// Whether all ranks are about to do the same, and what one rank alone has found out.
//
//   // Every rank: rank 0 prepares the directory, and all go on or none.
//   absl::StatusOr<std::string> prepared = std::string();
//   if (world->rank() == 0) prepared = Prepare(directory);
//   MUSTER_RETURN_IF_ERROR(FromRankZero(*world, prepared).status());
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/communicator.h"

namespace muster {

// Compares `text`, lines of "key=value", over the ranks; every rank calls it. Costs 64 bytes per
// rank when they agree.
//
// Errors: kInvalidArgument on every rank, with the same words: names the first rank that differs
//         from rank 0, and the first line; the communicator's.
absl::Status CheckAgreement(Communicator& world, absl::string_view text);

// Compares `hash`, 64 digits, of what every rank holds; every rank calls it.
//
// Errors: kDataLoss on every rank, with the same words: names the first rank that differs from rank
//         0, and `when`; the communicator's.
absl::Status CheckSameState(Communicator& world, const std::string& hash, absl::string_view when);

// The first line in which two texts differ, for people: "learning_rate.peak is 0.001 on rank 0 and
// 0.003 on rank 1". Threads: pure.
std::string DescribeDifference(absl::string_view text_of_0, absl::string_view text_of_rank,
                               int rank);

// Marks a failure that is not the loss of another rank, though its code may be that of one: a disk
// that does not answer is kUnavailable, too. It is a payload of the status ("muster/own_failure"),
// which one that is made anew of code and message has not. OkStatus stays as it is.
//
// Marked are what FromRank tells of a rank's failure, so Engine::Save's and Load's, and a reader's
// that Engine::Step returns. Threads: pure.
absl::Status AsOwnFailure(absl::Status failure);
bool IsOwnFailure(const absl::Status& failure);

// What rank `root` found out, on every rank: its status if that is an error, else its text. The
// others wait as long as it takes, whatever the communicator's time-out.
//
// Errors: the rank's, as an own failure; the communicator's.
absl::StatusOr<std::string> FromRank(Communicator& world, int root,
                                     absl::StatusOr<std::string> result);
absl::StatusOr<std::string> FromRankZero(Communicator& world, absl::StatusOr<std::string> result);

// All ranks go on, or none: on every rank the error of the first that has one. A rank waits for the
// others as long as `timeout` says, by default the communicator's.
//
// Errors: `own` of that rank, which is named unless it is rank 0; the communicator's.
absl::Status AllOrNone(Communicator& world, const absl::Status& own,
                       std::optional<absl::Duration> timeout = std::nullopt);

}  // namespace muster
