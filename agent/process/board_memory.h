// The memory of one worker's progress board (proto/base/progress_board.h): the agent makes it, and
// reads it without the worker's help. The worker's side: worker_runtime/comm/operation_ring.h.
//
// It is a memfd: on no disk whatever the runtime directory lies on, and gone with the processes
// that hold it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/progress_board.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// Threads: compatible; the worker may write at any time.
class BoardMemory {
 public:
  // An empty board with all of its memory, so that a worker cannot run into a limit while it marks.
  //
  // Errors: kResourceExhausted: no memory or no descriptor; kInternal: anything else. With errno in
  //         words.
  static absl::StatusOr<BoardMemory> Create();
  ~BoardMemory();
  BoardMemory(BoardMemory&& other) noexcept;
  BoardMemory& operator=(BoardMemory&& other) noexcept;

  // The value of MUSTER_BOARD: a path at which processes of this user can open it while this one
  // lives.
  const std::string& path() const { return path_; }

  // What the worker has written so far; whether it runs, hangs or is dead.
  //
  // Errors: kInvalidArgument, kFailedPrecondition: a worker has spoilt its header.
  absl::StatusOr<BoardSnapshot> Read() const;

  // The board itself, to look at often; its fields can be trusted as little as the worker.
  const ProgressBoard& board() const { return *static_cast<const ProgressBoard*>(memory_); }

 private:
  BoardMemory(UniqueFd fd, void* memory);

  UniqueFd fd_;
  void* memory_ = nullptr;
  std::string path_;
};

}  // namespace muster::agent
