#include "worker_runtime/engine/batch_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "muster/agreement.h"
#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::kWhole;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StatusIs;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;

TEST(BatchFeed, ReadsThoseBeforeTheOneThatIsAskedForFirst) {
  Alone([](Communicator& world) {
    SmallRig small(world, SmallPlan(SumMode::kOrdered, 3));
    const TrainingProgress progress{LossScaling()};
    BatchFeed feed(small.rig(), progress);
    const auto reader = small.Read(), other = small.Read();
    ASSERT_THAT(feed.Begin(*reader), IsOk());
    Tape tape(small.rig().pool, Tape::Mode::kInference);
    const auto third = feed.At(*reader, tape, 2, false);
    ASSERT_THAT(third, IsOk());
    for (const int64_t index : {0, 1, 2}) {
      const Batch expected = **other->Next();
      const auto batch = feed.At(*reader, tape, index, false);
      ASSERT_THAT(batch, IsOk());
      EXPECT_EQ((*batch)->inputs, expected.inputs) << index;
    }
    EXPECT_EQ((*third)->inputs, (*feed.At(*reader, tape, 2, false))->inputs);
    EXPECT_THAT(feed.TargetsThatCount(), Each(Gt(0)));
    EXPECT_EQ(feed.TargetsThatCount().size(), 3);
    EXPECT_EQ(feed.Shape().batch, kWhole.batch);
    EXPECT_EQ(feed.Shape().sequence, kWhole.sequence);
  });
}

TEST(BatchFeed, RefusesTheReaderOfAnotherTrainingOrAnotherStep) {
  Alone([](Communicator& world) {
    SmallRig small(world, SmallPlan(SumMode::kOrdered, 1));
    TrainingProgress progress{LossScaling()};
    progress.step = 3;
    BatchFeed feed(small.rig(), progress);
    EXPECT_THAT(std::string(feed.Next(*small.Read()).status().message()),
                HasSubstr("the reader's step is 0 and the engine's 3"));
    EXPECT_THAT(feed.Next(*small.Read(3)), IsOk());
    BatchOptions options = small.Read(3)->options();
    options.accumulation = 2;
    auto reader = *BatchReader::Create(small.text, options);
    EXPECT_THAT(std::string(feed.Next(*reader).status().message()),
                HasSubstr("the reader's accumulation is 2 and the engine's 1"));
    options = small.Read(3)->options();
    options.size = 2;
    reader = *BatchReader::Create(small.text, options);
    EXPECT_THAT(std::string(feed.Next(*reader).status().message()),
                HasSubstr("the reader's number of ranks is 2 and the engine's 1"));
  });
}

// Its code is that of a lost rank, too.
TEST(BatchFeed, SaysThatADiskIsNoOtherRank) {
  class Failing final : public TokenSource {
   public:
    int64_t num_tokens() const override { return 4000; }
    int64_t vocabulary() const override { return 24; }
    std::string Describe() const override { return "a disk"; }
    absl::Status Read(int64_t, absl::Span<int32_t>) const override {
      return absl::UnavailableError("cannot read a: Input/output error");
    }
  };
  const Failing disk;
  Alone([&](Communicator& world) {
    SmallRig small(world, SmallPlan(SumMode::kOrdered, 1));
    const TrainingProgress progress{LossScaling()};
    const BatchFeed feed(small.rig(), progress);
    const auto reader = *BatchReader::Create(disk, small.Read()->options());
    const absl::Status failure = feed.Next(*reader).status();
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot read a")));
    EXPECT_TRUE(IsOwnFailure(failure));
  });
}

}  // namespace
}  // namespace muster::engine
