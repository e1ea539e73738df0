// The key-value space of a round, as a worker sees it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"

namespace muster {

// The place where ranks leave addresses for each other. A key is written by one rank; keys of one
// round are never seen in another.
//
// Threads: safe.
class Store {
 public:
  virtual ~Store() = default;

  // Sets `key`; overwrites.
  //
  // Errors: kUnavailable: the store is gone; kDeadlineExceeded; kResourceExhausted: the job's store
  // is full.
  virtual absl::Status Set(const std::string& key, const std::string& value, MonoTime deadline) = 0;

  // Waits until `key` exists and returns its value.
  //
  // Errors: kDeadlineExceeded: it did not appear in time; kUnavailable: the store is gone.
  virtual absl::StatusOr<std::string> Wait(const std::string& key, MonoTime deadline) = 0;
};

}  // namespace muster
