// A wait for a key of the store that ends when it is no longer wanted.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"

namespace muster::comm {

// How often it looks whether it is still wanted.
inline constexpr absl::Duration kStoreLookAround = absl::Milliseconds(200);

// Waits as store.Wait does, but ends with `failure` once that is no longer ok.
//
// Errors: the store's, kDeadlineExceeded among them; failure's.
absl::StatusOr<std::string> WaitUnless(Store& store, const std::string& key, MonoTime deadline,
                                       absl::FunctionRef<absl::Status()> failure);

}  // namespace muster::comm
