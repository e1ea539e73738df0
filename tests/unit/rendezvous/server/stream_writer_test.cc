#include "rendezvous/server/stream_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/rendezvous.pb.h"

namespace muster::rendezvous {
namespace {

using ::testing::SizeIs;

class StreamWriterTest : public ::testing::Test, public StreamSink {
 protected:
  void Write(proto::FromServer message) override { written_.push_back(std::move(message)); }
  void Finish(const absl::Status& status) override { finished_ = status; }
  absl::Duration RenewInterval() override { return absl::Seconds(3); }

  // All that it writes to a reader who takes each message at once.
  void Run() {
    writer_.Pump();
    for (size_t i = 0; i < written_.size(); ++i) writer_.OnWritten();
  }

  EncodedParts parts_;
  std::vector<proto::FromServer> written_;
  std::optional<absl::Status> finished_;
  StreamWriter writer_{*this, parts_};
};

TEST_F(StreamWriterTest, WritesOneMessageAtATimeAndGreetsFirst) {
  ASSERT_TRUE(writer_.outbox().Push(StoreReply{.request_id = 5}));
  writer_.Push(Directive{.revision = 1});
  auto greeting = std::make_unique<proto::FromServer>();
  greeting->mutable_accepted()->set_term(7);
  writer_.Greet(std::move(greeting));
  writer_.Pump();
  writer_.Pump();
  ASSERT_THAT(written_, SizeIs(1)) << "the first is still being written";
  EXPECT_EQ(written_[0].accepted().term(), 7);
  writer_.OnWritten();
  writer_.OnWritten();
  ASSERT_THAT(written_, SizeIs(3));
  EXPECT_EQ(written_[1].directive().revision(), 1);
  EXPECT_EQ(written_[1].renew_interval_us(), 3'000'000);
  EXPECT_EQ(written_[2].store().request_id(), 5);
  EXPECT_FALSE(finished_.has_value());
}

TEST_F(StreamWriterTest, SaysThatADirectiveIsTheLastOneAgain) {
  writer_.Push(Directive{.revision = 1, .report_sequence = 1});
  Run();
  writer_.Push(Directive{.revision = 1, .report_sequence = 2});
  writer_.Pump();
  ASSERT_THAT(written_, SizeIs(2));
  EXPECT_TRUE(written_[1].has_repeat());
  EXPECT_EQ(written_[1].repeat().report_sequence(), 2);
}

TEST_F(StreamWriterTest, EndsAfterWhatIsBeingWrittenAndDropsTheRest) {
  writer_.Push(Directive{.revision = 1});
  writer_.Pump();
  writer_.Push(Directive{.revision = 2});
  writer_.End(absl::AbortedError("first"));
  writer_.End(absl::AbortedError("second"));
  writer_.Pump();
  EXPECT_FALSE(finished_.has_value());
  writer_.OnWritten();
  EXPECT_THAT(written_, SizeIs(1));
  EXPECT_EQ(finished_, absl::AbortedError("first"));
}

TEST_F(StreamWriterTest, WritesTheJobsLastWordBeforeItEnds) {
  writer_.Drain();
  EXPECT_FALSE(writer_.HasToldEnd());
  writer_.Push(Directive{.body = EndJob{}});
  EXPECT_TRUE(writer_.HasToldEnd());
  writer_.End(absl::UnavailableError("over"));
  Run();
  ASSERT_THAT(written_, SizeIs(1));
  EXPECT_TRUE(written_[0].directive().has_end_job());
  EXPECT_EQ(finished_, absl::UnavailableError("over"));
}

}  // namespace
}  // namespace muster::rendezvous
