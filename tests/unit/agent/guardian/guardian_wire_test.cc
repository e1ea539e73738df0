#include "agent/guardian/guardian_wire.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::agent::wire {
namespace {

using ::testing::ElementsAre;

UniqueFd OpenNull() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

Frame FrameOf(const Request& request) {
  Frame frame;
  frame.body = Encode(request);
  return frame;
}

TEST(GuardianWire, CarriesAWorkerCommandWithTheDescriptorsBesideIt) {
  WorkerCommand command;
  command.worker_id = 7;
  command.argv = {"python3", "-u", "\xff not utf-8"};
  command.environment = {"A=1", "B="};
  command.working_directory = "/tmp";
  command.stdin_fd = -1;
  command.stdout_fd = 100;
  command.stderr_fd = 101;
  command.cpus = {0, 2};
  Frame frame = FrameOf(command);
  frame.descriptors.push_back(OpenNull());
  frame.descriptors.push_back(OpenNull());
  const auto request = DecodeRequest(frame);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& decoded = std::get<WorkerCommand>(*request);
  EXPECT_EQ(decoded.worker_id, 7u);
  EXPECT_EQ(decoded.argv, command.argv);
  EXPECT_EQ(decoded.environment, command.environment);
  EXPECT_EQ(decoded.working_directory, "/tmp");
  EXPECT_THAT(decoded.cpus, ElementsAre(0, 2));
  EXPECT_EQ(decoded.stdin_fd, -1);
  EXPECT_EQ(decoded.stdout_fd, frame.descriptors[0].get());
  EXPECT_EQ(decoded.stderr_fd, frame.descriptors[1].get());
}

TEST(GuardianWire, RefusesACommandWithoutTheDescriptorsItSpeaksOf) {
  WorkerCommand command;
  command.stdout_fd = 100;
  EXPECT_EQ(DecodeRequest(FrameOf(command)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GuardianWire, RefusesACommandWithMoreDescriptorsThanItSpeaksOf) {
  Frame frame = FrameOf(WorkerCommand{});
  frame.descriptors.push_back(OpenNull());
  EXPECT_EQ(DecodeRequest(frame).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GuardianWire, StillNamesTheWorkerWhoseDescriptorsWereLost) {
  WorkerCommand command;
  command.worker_id = 7;
  command.stdout_fd = 100;
  Frame frame = FrameOf(command);
  frame.descriptors_lost = true;
  const auto request = DecodeRequest(frame);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<WorkerCommand>(*request).worker_id, 7u);
}

TEST(GuardianWire, CarriesTheOtherRequests) {
  const auto signal = DecodeRequest(FrameOf(SignalGroup{3, 15}));
  EXPECT_EQ(std::get<SignalGroup>(*signal).worker_id, 3u);
  EXPECT_EQ(std::get<SignalGroup>(*signal).signal, 15);
  for (const absl::Duration after :
       {absl::ZeroDuration(), absl::Seconds(15), absl::InfiniteDuration()}) {
    const auto later = DecodeRequest(FrameOf(SignalGroup{3, 15, after}));
    EXPECT_EQ(std::get<SignalGroup>(*later).group_after, after);
  }
  EXPECT_EQ(std::get<Sweep>(*DecodeRequest(FrameOf(Sweep{9}))).signal, 9);
  EXPECT_EQ(std::get<RemoveAtEnd>(*DecodeRequest(FrameOf(RemoveAtEnd{"/x"}))).path, "/x");
  EXPECT_TRUE(std::holds_alternative<ListStrays>(*DecodeRequest(FrameOf(ListStrays{}))));
  EXPECT_EQ(std::get<LeaveNotice>(*DecodeRequest(FrameOf(LeaveNotice{"x"}))).notice, "x");
}

TEST(GuardianWire, CarriesTheReplies) {
  const auto spawned = DecodeReply(Encode(Spawned{3, 4242}));
  EXPECT_EQ(std::get<Spawned>(*spawned).pid, 4242);
  const auto failed = DecodeReply(Encode(SpawnFailed{3, 2, "execve"}));
  EXPECT_EQ(std::get<SpawnFailed>(*failed).error_number, 2);
  EXPECT_EQ(std::get<SpawnFailed>(*failed).step, "execve");
  const auto exited = DecodeReply(Encode(WorkerExit{3, 0, 9}));
  EXPECT_EQ(std::get<WorkerExit>(*exited).signal, 9);
  EXPECT_THAT(std::get<Strays>(*DecodeReply(Encode(Strays{{7, 8}}))).pids, ElementsAre(7, 8));
  EXPECT_TRUE(std::holds_alternative<Empty>(*DecodeReply(Encode(Empty{}))));
}

TEST(GuardianWire, RefusesWhatIsNoMessage) {
  Frame frame;
  EXPECT_FALSE(DecodeRequest(frame).ok());
  frame.body = "\xff\xff\xff";
  EXPECT_FALSE(DecodeRequest(frame).ok());
  EXPECT_FALSE(DecodeReply("").ok());
  EXPECT_FALSE(DecodeReply("\xff\xff\xff").ok());
}

}  // namespace
}  // namespace muster::agent::wire
