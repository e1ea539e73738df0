// How long a test waits for what comes on any machine sooner or later. Only a hang runs into it.
#pragma once

#include "absl/time/time.h"

namespace muster::testing {

// `usual` times $MUSTER_TEST_PATIENCE: a whole number, by default 5 under a sanitizer, else 1.
// Never for a time-out of what is under test. ctest's own limits grow with CMake's variable of that
// name, which `deploy/dev` sets from the environment.
absl::Duration Patience(absl::Duration usual);

}  // namespace muster::testing
