#include "rendezvous/client/retry_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::rendezvous {
namespace {

constexpr BackoffOptions kBackoff = {.initial = absl::Milliseconds(100), .max = absl::Seconds(1)};

TEST(RetryPolicy, GivesUpAfterAsManyRefusalsAsTheirKindNeeds) {
  const auto tries = [](FailureKind kind) {
    RetryPolicy policy(kBackoff, 1);
    int count = 1;
    while (!policy.GivesUp(kind)) ++count;
    return count;
  };
  EXPECT_EQ(tries(FailureKind::kSecret), 3);
  EXPECT_EQ(tries(FailureKind::kNotMuster), 5);
  EXPECT_EQ(tries(FailureKind::kRefused), 1);
}

TEST(RetryPolicy, CountsNoServerThatIsNotThere) {
  RetryPolicy policy(kBackoff, 1);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(policy.GivesUp(FailureKind::kRetry));
  EXPECT_FALSE(policy.GivesUp(FailureKind::kSecret));
}

TEST(RetryPolicy, NeverGivesUpOnceItWasAccepted) {
  RetryPolicy policy(kBackoff, 1);
  policy.NoteAccepted();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(policy.GivesUp(FailureKind::kRefused));
}

TEST(RetryPolicy, PausesLongerEachTimeUntilTheServerHasSpoken) {
  RetryPolicy policy(kBackoff, 1);
  for (const int full_ms : {100, 200, 400, 800, 1000, 1000}) {
    const absl::Duration pause = policy.NextPause();
    EXPECT_GE(pause, absl::Milliseconds(full_ms) / 2);
    EXPECT_LE(pause, absl::Milliseconds(full_ms));
  }
  policy.NoteDirective();
  EXPECT_LE(policy.NextPause(), absl::Milliseconds(100));
}

TEST(RetryPolicy, PausesAsItsSeedHasIt) {
  RetryPolicy one(kBackoff, 1), same(kBackoff, 1), other(kBackoff, 2);
  const absl::Duration pause = one.NextPause();
  EXPECT_EQ(same.NextPause(), pause);
  EXPECT_NE(other.NextPause(), pause);
}

}  // namespace
}  // namespace muster::rendezvous
