// How long a test waits for what comes on any machine sooner or later. Only a hang runs into it.
#pragma once

#include "absl/time/time.h"

namespace muster::testing {

// `usual` times CMake's MUSTER_TEST_PATIENCE, by which ctest's limits grow, too; `deploy/dev` takes
// it from the environment. A time-out of what is under test never passes through here.
absl::Duration Patience(absl::Duration usual);

}  // namespace muster::testing
