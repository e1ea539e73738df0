// The agent is the other end of a pair of sockets.
#include "worker_runtime/runtime/agent_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "proto/agent.pb.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

class AgentSocketTest : public ::testing::Test {
 protected:
  static std::array<UniqueFd, 2> MakePair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
  void Reply(const std::string& bytes) {
    ASSERT_EQ(write(ends_[1].get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }
  static MonoTime Soon() { return MonoNow() + absl::Milliseconds(20); }

  std::array<UniqueFd, 2> ends_ = MakePair();
  AgentSocket socket_{std::move(ends_[0]), "/run/agent"};
  proto::WorkerReply reply_;
};

TEST_F(AgentSocketTest, WritesTheLengthBeforeAMessage) {
  proto::WorkerMessage message;
  message.mutable_goodbye()->set_step(5);
  ASSERT_THAT(socket_.Send(message, Soon()), IsOk());
  std::string frame(100, '\0');
  frame.resize(static_cast<size_t>(read(ends_[1].get(), frame.data(), frame.size())));
  EXPECT_EQ(frame, std::string({4, 0, 0, 0}) + message.SerializeAsString());
}

TEST_F(AgentSocketTest, ReadsRepliesOneByOne) {
  proto::WorkerReply welcome;
  welcome.mutable_welcome();
  const std::string body = welcome.SerializeAsString();
  Reply(std::string({static_cast<char>(body.size()), 0, 0, 0}) + body + std::string(4, '\0'));
  ASSERT_THAT(socket_.Receive(&reply_), IsOk());
  EXPECT_TRUE(reply_.has_welcome());
  ASSERT_THAT(socket_.Receive(&reply_), IsOk());
  EXPECT_FALSE(reply_.has_welcome());
}

TEST_F(AgentSocketTest, RefusesAFrameThatIsTooLargeForAReply) {
  Reply("\xff\xff\xff\xff");
  EXPECT_THAT(socket_.Receive(&reply_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/run/agent sent something")));
}

TEST_F(AgentSocketTest, RefusesAFrameThatIsNoReply) {
  Reply(std::string({1, 0, 0, 0, 7}));
  EXPECT_THAT(socket_.Receive(&reply_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not a reply")));
}

TEST_F(AgentSocketTest, SaysThatTheAgentIsGone) {
  ends_[1].reset();
  EXPECT_THAT(socket_.Receive(&reply_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/run/agent has closed")));
  EXPECT_THAT(socket_.Send(proto::WorkerMessage(), Soon()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AgentSocketTest, GivesUpAnAgentThatDoesNotRead) {
  proto::WorkerMessage message;
  message.mutable_store()->mutable_set()->set_value(std::string(size_t{1} << 20, 'x'));
  EXPECT_THAT(socket_.Send(message, Soon()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(socket_.Send(message, Soon()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AgentSocketTest, EndsAReadWhenItIsClosed) {
  absl::Status received;
  std::thread reader([&] { received = socket_.Receive(&reply_); });
  socket_.Close();
  reader.join();
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AgentSocketTest, IsFoundNeitherWhereNobodyListensNorAtAPathThatIsTooLong) {
  EXPECT_THAT(AgentSocket::Connect("/nonexistent/agent"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nonexistent/agent")));
  EXPECT_THAT(AgentSocket::Connect(std::string(200, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace muster
