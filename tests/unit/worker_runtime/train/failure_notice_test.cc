#include "worker_runtime/train/failure_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/agreement.h"

namespace muster::train {
namespace {

TEST(MustSay, IsTrueWhileRankZeroHasSaidNothing) {
  EXPECT_TRUE(MustSay(absl::NotFoundError("no file a"), std::nullopt));
  EXPECT_TRUE(MustSay(absl::UnavailableError("rank 0 has died"), std::nullopt));
}

TEST(MustSay, IsFalseForWhatRankZeroHasSaid) {
  EXPECT_FALSE(MustSay(absl::NotFoundError("no file a"), "no file a"));
}

TEST(MustSay, IsFalseForAFailureThatCameFromAPeer) {
  EXPECT_FALSE(MustSay(absl::AbortedError("rank 1 of 4: rank 2 stopped"), "rank 0 of 4: …"));
  EXPECT_FALSE(MustSay(absl::UnavailableError("rank 1 of 4: rank 2 died"), "rank 0 of 4: …"));
  EXPECT_FALSE(MustSay(absl::DeadlineExceededError("rank 1 of 4: late"), "rank 0 of 4: …"));
}

TEST(MustSay, IsTrueForAFailureOfItsOwn) {
  EXPECT_TRUE(MustSay(absl::NotFoundError("no file a on node2"), "rank 0 of 4: rank 1 stopped"));
}

TEST(MayComeFromPeers, IsTrueOfWhatEndsACommunicatorAndOfNothingElse) {
  EXPECT_TRUE(MayComeFromPeers(absl::AbortedError("rank 1 of 4: rank 2 stopped")));
  EXPECT_TRUE(MayComeFromPeers(absl::UnavailableError("rank 2 died")));
  EXPECT_TRUE(MayComeFromPeers(absl::DeadlineExceededError("rank 2 is late")));
  EXPECT_FALSE(MayComeFromPeers(absl::FailedPreconditionError("the loss is not finite")));
  EXPECT_FALSE(MayComeFromPeers(absl::ResourceExhaustedError("no space")));
}

TEST(MayComeFromPeers, IsFalseOfADiskThatDoesNotAnswer) {
  EXPECT_FALSE(MayComeFromPeers(AsOwnFailure(absl::UnavailableError("cannot read a: EIO"))));
}

TEST(ExitCodeOfSetup, IsTwoForWhatTheUserCanCorrect) {
  EXPECT_EQ(ExitCodeOfSetup(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOfSetup(absl::NotFoundError("")), 2);
  EXPECT_EQ(ExitCodeOfSetup(absl::PermissionDeniedError("")), 2);
  EXPECT_EQ(ExitCodeOfSetup(absl::UnimplementedError("")), 2);
  EXPECT_EQ(ExitCodeOfSetup(absl::FailedPreconditionError("")), 2);
}

TEST(ExitCodeOfSetup, IsOneForWhatMayGoBetterTheNextTime) {
  EXPECT_EQ(ExitCodeOfSetup(absl::UnavailableError("")), 1);
  EXPECT_EQ(ExitCodeOfSetup(absl::DeadlineExceededError("")), 1);
  EXPECT_EQ(ExitCodeOfSetup(absl::InternalError("")), 1);
}

}  // namespace
}  // namespace muster::train
