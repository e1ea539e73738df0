// The status macros for programs on the runtime: MUSTER_RETURN_IF_ERROR, MUSTER_ASSIGN_OR_RETURN
// and MUSTER_CHECK.
#pragma once

#include "absl/status/status.h"        // IWYU pragma: export
#include "absl/status/statusor.h"      // IWYU pragma: export
#include "proto/base/status_macros.h"  // IWYU pragma: export
