#include "tests/support/patience.h"

namespace muster::testing {

absl::Duration Patience(absl::Duration usual) { return MUSTER_TEST_PATIENCE * usual; }

}  // namespace muster::testing
