#include "agent/guardian/framed_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::agent {
namespace {

class FramedSocket : public testing::Test {
 protected:
  FramedSocket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ours_ = UniqueFd(ends[0]);
    theirs_ = UniqueFd(ends[1]);
  }
  FrameWriter Writer() { return FrameWriter(ours_.get()); }
  FrameReader Reader() { return FrameReader(theirs_.get()); }

  // Lets both work until `count` frames have come.
  static std::vector<Frame> Transfer(FrameWriter& writer, FrameReader& reader, size_t count) {
    std::vector<Frame> frames;
    for (int turns = 0; frames.size() < count && turns < 100'000; ++turns) {
      EXPECT_TRUE(writer.Flush().ok());
      auto frame = reader.Read();
      EXPECT_TRUE(frame.ok());
      if (frame.ok() && frame->has_value()) frames.push_back(**std::move(frame));
    }
    return frames;
  }

  static UniqueFd OpenNull() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  static std::vector<UniqueFd> OpenNulls(int count) {
    std::vector<UniqueFd> fds;
    for (int i = 0; i < count; ++i) fds.push_back(OpenNull());
    return fds;
  }

  UniqueFd ours_, theirs_;
};

TEST_F(FramedSocket, CarriesFramesInOrderEmptyOnesToo) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  writer.Push("first");
  writer.Push("");
  writer.Push("third");
  const auto frames = Transfer(writer, reader, 3);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].body, "first");
  EXPECT_EQ(frames[1].body, "");
  EXPECT_EQ(frames[2].body, "third");
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.queued_bytes(), 0u);
}

TEST_F(FramedSocket, GivesDescriptorsToTheFrameTheyCameWith) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  writer.Push("none");
  writer.Push("two", OpenNulls(2));
  writer.Push("none again");
  writer.Push("one", OpenNulls(1));
  const auto frames = Transfer(writer, reader, 4);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[0].descriptors.size(), 0u);
  EXPECT_EQ(frames[1].descriptors.size(), 2u);
  EXPECT_EQ(frames[2].descriptors.size(), 0u);
  EXPECT_EQ(frames[3].descriptors.size(), 1u);
  EXPECT_TRUE(fcntl(frames[3].descriptors[0].get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(FramedSocket, KeepsWhatTheSocketDoesNotTakeUntilItDoes) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  const std::string large(4 << 20, 'x');
  writer.Push(large, OpenNulls(3));
  writer.Push("behind it", OpenNulls(1));
  ASSERT_TRUE(writer.Flush().ok());
  EXPECT_FALSE(writer.empty());
  const auto frames = Transfer(writer, reader, 2);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].body, large);
  EXPECT_EQ(frames[0].descriptors.size(), 3u);
  EXPECT_EQ(frames[1].body, "behind it");
  EXPECT_EQ(frames[1].descriptors.size(), 1u);
}

TEST_F(FramedSocket, ClosesDescriptorsOnceTheyAreSent) {
  FrameWriter writer = Writer();
  std::vector<UniqueFd> fds = OpenNulls(1);
  const int number = fds[0].get();
  writer.Push("one", std::move(fds));
  ASSERT_TRUE(writer.Flush().ok());
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST_F(FramedSocket, SaysWhenDescriptorsWereLostForWantOfRoom) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  writer.Push("three", OpenNulls(3));
  ASSERT_TRUE(writer.Flush().ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next_free = OpenNull().get();
  const rlimit tight{static_cast<rlim_t>(next_free + 1), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  auto frame = reader.Read();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->body, "three");
  EXPECT_TRUE((*frame)->descriptors_lost);
}

TEST_F(FramedSocket, ReportsAPeerThatHasClosed) {
  FrameReader reader = Reader();
  ours_.reset();
  EXPECT_EQ(reader.Read().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FramedSocket, WritesToAClosedPeerWithoutASignal) {
  FrameWriter writer = Writer();
  theirs_.reset();
  writer.Push("nobody reads this");
  EXPECT_EQ(writer.Flush().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FramedSocket, RefusesALengthOverTheLimitBeforeItAllocates) {
  FrameReader reader = Reader();
  ASSERT_EQ(write(ours_.get(), "\xff\xff\xff\xff", 4), 4);
  EXPECT_EQ(reader.Read().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::agent
