#include "tests/support/patience.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

int Factor() {
  const char* const asked = std::getenv("MUSTER_TEST_PATIENCE");
  if (asked == nullptr) return kSanitized ? 5 : 1;
  int factor = 0;
  MUSTER_CHECK(absl::SimpleAtoi(asked, &factor) && factor >= 1);
  return factor;
}

}  // namespace

absl::Duration Patience(absl::Duration usual) {
  static const int factor = Factor();
  return factor * usual;
}

}  // namespace muster::testing
