// Memory that one process makes for others of its machine to map. It has no name in a file system:
// the others open it through its maker's entry in /proc, and it is gone with the last of them,
// however they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/io/unique_fd.h"

namespace muster::comm {

// Processes with equal texts may open each other's segments: one kernel since its start, one
// process namespace, one user. Empty where that cannot be found out.
std::string ThisMachine();

// Threads: thread-compatible.
class SharedSegment {
 public:
  // Zeroed memory of `bytes`; its pages are taken as they are first touched.
  //
  // Errors: kUnavailable: the system gives none.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(size_t bytes);
  // What another process of this machine made. `address` is its address().
  //
  // Errors: kUnavailable: that process is gone, lets nobody look into it, or made another segment.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(absl::string_view address,
                                                             size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Past the segment's own token, at a cache line.
  uint8_t* data() const { return memory_ + kTokenBytes; }
  const std::string& address() const { return address_; }
  // Whether the process that made it lives; never waits.
  bool IsMakerAlive() const;

 private:
  // Tells a segment from one that another process with the same id made later.
  static constexpr size_t kTokenBytes = 64;

  SharedSegment() = default;
  absl::Status Map(int fd, size_t bytes);

  // Constant after construction.
  std::string address_;
  uint8_t* memory_ = nullptr;
  size_t mapped_bytes_ = 0;
  UniqueFd fd_;     // its maker's, for others to open
  UniqueFd maker_;  // another process's: a pidfd
};

}  // namespace muster::comm
