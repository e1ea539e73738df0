// The files of the workers' progress boards (proto/base/progress_board.h): the agent makes one for
// each local worker and round in the job's runtime directory, and reads it without the worker's
// help. The worker's side: worker_runtime/comm/operation_ring.h.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/ids.h"
#include "proto/base/progress_board.h"

namespace muster::agent {

// <runtime_directory>/board-<round>-<local_rank>.
std::string BoardPath(const std::string& runtime_directory, Round round, LocalRank local_rank);

// Makes an empty board of mode 0600 with all of its space, so that a worker cannot run into a full
// file system while it marks.
//
// Errors: kAlreadyExists: there is one; kResourceExhausted: no space; kInternal: anything else,
// with
//         errno in words.
absl::Status CreateBoard(const std::string& path);

// What the worker has written so far; whether it runs, hangs or is dead.
//
// Errors: kNotFound: there is no such file; kInternal: it cannot be read; kInvalidArgument,
//         kFailedPrecondition: it is no board of this version.
absl::StatusOr<BoardSnapshot> ReadBoard(const std::string& path);

}  // namespace muster::agent
