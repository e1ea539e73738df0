// The thread that reads ahead: how far, in which order, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data/token_sources.h"

namespace muster::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr BatchOptions kOneRow = {.batch = 1, .sequence = 16};
// What a reader holds at most: the batch in use and those ahead of it.
constexpr int64_t kHeld = 4;

// Fails at batch number `failing` (with one row each) and tells when `awaited` batches were read.
class WatchedSource : public CountingSource {
 public:
  explicit WatchedSource(int64_t awaited, int64_t failing = -1)
      : CountingSource(100000), awaited_(awaited), failing_(failing) {}

  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    const int64_t n = reads_++;
    if (n - taken > kHeld - 1) too_far_ = true;
    if (n == failing_) return absl::UnavailableError(absl::StrCat("batch ", n, " is lost"));
    if (n + 1 == awaited_) reached_.set_value();
    return CountingSource::Read(first, out);
  }
  void Await() { reached_.get_future().wait(); }
  int64_t reads() const { return reads_; }
  bool too_far() const { return too_far_; }

  // Batches that are no longer in use; set by the test before it asks for the next.
  std::atomic<int64_t> taken = 0;

 private:
  const int64_t awaited_;
  const int64_t failing_;
  mutable std::atomic<int64_t> reads_ = 0;
  mutable std::atomic<bool> too_far_ = false;
  mutable std::promise<void> reached_;
};

std::unique_ptr<BatchReader> Start(const TokenSource& source, const BatchOptions& options) {
  auto reader = BatchReader::Create(source, options);
  EXPECT_THAT(reader, IsOk());
  return reader.ok() ? *std::move(reader) : nullptr;
}

Batch Filled(const TokenSource& source, const BatchOptions& options, int64_t step,
             int64_t micro_batch) {
  Batch batch;
  EXPECT_THAT(FillBatch(source, options, step, micro_batch, batch), IsOk());
  return batch;
}

TEST(BatchReader, GivesWhatFillBatchGivesInOrder) {
  const CountingSource source(100000);
  const BatchOptions options = {.seed = 2,
                                .rank = 1,
                                .size = 3,
                                .accumulation = 2,
                                .batch = 2,
                                .sequence = 16,
                                .first_step = 4};
  const auto reader = Start(source, options);
  for (int64_t n = 0; n < 50; ++n) {
    const auto batch = reader->Next();
    ASSERT_THAT(batch, IsOk());
    EXPECT_EQ((*batch)->step, 4 + n / 2);
    EXPECT_EQ((*batch)->micro_batch, 2 + n % 2);
    const Batch expected = Filled(source, options, 4 + n / 2, 2 + n % 2);
    ASSERT_EQ((*batch)->inputs, expected.inputs) << n;
    ASSERT_EQ((*batch)->targets, expected.targets) << n;
  }
}

TEST(BatchReader, ReadsAheadWithoutBeingAsked) {
  WatchedSource source(kHeld);
  const auto reader = Start(source, kOneRow);
  source.Await();
  EXPECT_EQ(source.reads(), kHeld);
}

TEST(BatchReader, NeverHoldsMoreThanAFewBatches) {
  WatchedSource source(200 + kHeld - 1);
  const auto reader = Start(source, kOneRow);
  for (int64_t n = 0; n < 200; ++n) {
    source.taken = n;
    ASSERT_THAT(reader->Next(), IsOk());
  }
  source.Await();
  EXPECT_FALSE(source.too_far());
}

TEST(BatchReader, LeavesABatchAloneUntilTheNextIsAskedFor) {
  WatchedSource source(kHeld + 1);
  const auto reader = Start(source, kOneRow);
  ASSERT_THAT(reader->Next(), IsOk());
  const auto second = reader->Next();
  ASSERT_THAT(second, IsOk());
  const std::vector<int32_t> inputs = (*second)->inputs;
  source.Await();  // the thread has read what it could
  EXPECT_EQ((*second)->inputs, inputs);
  EXPECT_EQ(inputs, Filled(source, kOneRow, 1, 0).inputs);
}

TEST(BatchReader, HandsAnErrorOnAfterTheBatchesBeforeItAndThenForEver) {
  WatchedSource source(-1, 2);
  const auto reader = Start(source, kOneRow);
  EXPECT_THAT(reader->Next(), IsOk());
  const auto last = reader->Next();
  ASSERT_THAT(last, IsOk());
  EXPECT_EQ((*last)->step, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(reader->Next(), StatusIs(StatusCode::kUnavailable, HasSubstr("batch 2 is lost")));
  }
}

TEST(BatchReader, NamesFileAndPositionOfABadToken) {
  TemporaryDirectory directory;
  const std::vector<std::string> paths = {directory.File("bad.bin")};
  WriteFile(paths[0], Gpt2File({1, 2, 3, 65535, 5}));
  const auto source = OpenTokens(paths);
  ASSERT_THAT(source, IsOk());
  const auto reader = Start(**source, {.sequence = 4});
  EXPECT_THAT(reader->Next(), StatusIs(StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr(paths[0]), HasSubstr("token 3 is 65535"))));
}

TEST(BatchReader, EndsWhileItsThreadWaitsForRoom) {
  WatchedSource source(kHeld);
  auto reader = Start(source, kOneRow);
  source.Await();
  reader.reset();
  EXPECT_EQ(source.reads(), kHeld);
}

TEST(BatchReader, EndsAfterAnErrorThatNobodyAskedFor) {
  WatchedSource source(1, 1);
  auto reader = Start(source, kOneRow);
  source.Await();
  reader.reset();
  EXPECT_LE(source.reads(), 2);
}

// Read does not return before the test lets it.
class HeldSource : public CountingSource {
 public:
  HeldSource() : CountingSource(100000) {}
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    if (reads_++ == 0) entered.set_value();
    may_go.wait();
    return CountingSource::Read(first, out);
  }
  int64_t reads() const { return reads_; }

  mutable std::promise<void> entered;
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();

 private:
  mutable std::atomic<int64_t> reads_ = 0;
};

TEST(BatchReader, EndsAfterTheReadUnderWay) {
  HeldSource source;
  auto reader = Start(source, kOneRow);
  source.entered.get_future().wait();
  source.go.set_value();
  reader.reset();
  const int64_t reads = source.reads();
  EXPECT_GE(reads, 1);
  EXPECT_LE(reads, kHeld);
}

TEST(BatchReader, WaitsForTheBatchThatIsNotReadYet) {
  HeldSource source;
  const auto reader = Start(source, kOneRow);
  auto next = std::async(std::launch::async, [&] { return reader->Next().status(); });
  source.entered.get_future().wait();
  source.go.set_value();
  EXPECT_THAT(next.get(), IsOk());
}

TEST(BatchReader, MayBeMadeAndDroppedManyTimes) {
  const CountingSource source(100000);
  for (int i = 0; i < 100; ++i) {
    const auto reader = Start(source, kOneRow);
    for (int n = 0; n < i % 6; ++n) ASSERT_THAT(reader->Next(), IsOk());
  }
}

}  // namespace
}  // namespace muster::testing
