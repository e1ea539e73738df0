// A worker's progress board from both ends: the agent makes and reads the file, the runtime writes
// it.
#include "agent/process/board_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/comm/operation_ring.h"

namespace muster::agent {
namespace {

using ::muster::comm::OperationRing;
using ::muster::testing::IsOk;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BoardFile : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::string path_ = BoardPath(directory_.path(), Round(3), LocalRank(1));
};

TEST_F(BoardFile, IsEmptyAndPrivateWhenMade) {
  ASSERT_THAT(CreateBoard(path_), IsOk());
  struct stat info {};
  ASSERT_EQ(::stat((directory_.path() + "/board-3-1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_GE(info.st_blocks * 512, static_cast<off_t>(kBoardBytes)) << "its space is its own";
  const auto snapshot = ReadBoard(path_);
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, 0);
  EXPECT_FALSE(snapshot->step.has_value());
  EXPECT_TRUE(snapshot->operations.empty());
  EXPECT_THAT(CreateBoard(path_), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path_)));
}

TEST_F(BoardFile, IsReadWhileTheWorkerHasItOpen) {
  ASSERT_THAT(CreateBoard(path_), IsOk());
  auto board = OperationRing::OpenBoard(path_);
  ASSERT_THAT(board, IsOk());
  (*board)->MarkProgress(7, Phase::kForward);
  const auto snapshot = ReadBoard(path_);
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, ::getpid());
  EXPECT_EQ(snapshot->step, 7);
  EXPECT_EQ(snapshot->phase, Phase::kForward);
}

// In a child: an all-reduce that is done, and a barrier that the other rank never joins.
[[noreturn]] void RunWorkerAndDie(const std::string& path) {
  auto board = OperationRing::OpenBoard(path);
  if (!board.ok()) ::_exit(3);
  std::shared_ptr<OperationRing> ring = *std::move(board);
  auto solo = comm::MakeLoopbackCommunicators({.group = "tp", .size = 1, .ring = ring});
  auto pair = comm::MakeLoopbackCommunicators({.group = "dp", .size = 2, .ring = ring});
  std::vector<float> data(6);
  if (!solo[0]->AllReduce(BufferOf(data)).Wait().ok()) ::_exit(4);
  ring->MarkProgress(41, Phase::kReduce);
  const Work never = pair[1]->Barrier();
  ::kill(::getpid(), SIGKILL);
  ::_exit(5);
}

TEST_F(BoardFile, ShowsWhatAWorkerThatWasKilledDidLast) {
  ASSERT_THAT(CreateBoard(path_), IsOk());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) RunWorkerAndDie(path_);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);

  const auto snapshot = ReadBoard(path_);
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, child);
  EXPECT_EQ(snapshot->step, 41);
  EXPECT_EQ(snapshot->phase, Phase::kReduce);
  EXPECT_LT(snapshot->marked_at, MonoNow());
  std::vector<std::string> operations;
  for (const auto& record : snapshot->operations) operations.push_back(Describe(*snapshot, record));
  EXPECT_THAT(operations, ElementsAre("all_reduce #0 (group tp, 24 bytes f32), done",
                                      "barrier #0 (group dp), issued"));
  const BoardSnapshot::Record& last = snapshot->operations.back();
  EXPECT_EQ(snapshot->groups[last.group].rank, 1);
  EXPECT_GE(last.issued_at, snapshot->marked_at);
}

TEST_F(BoardFile, OfAnotherVersionOrSizeIsRefusedByBothEnds) {
  ASSERT_THAT(CreateBoard(path_), IsOk());
  std::string bytes = ReadFile(path_);
  const uint32_t later = kBoardVersion + 1;
  std::memcpy(&bytes[offsetof(BoardHeader, version)], &later, sizeof(later));
  WriteFile(path_, bytes);
  EXPECT_THAT(OperationRing::OpenBoard(path_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("MUSTER_BOARD=" + path_), HasSubstr("version 2"),
                             HasSubstr("expected version 1"))));
  EXPECT_THAT(ReadBoard(path_), StatusIs(absl::StatusCode::kFailedPrecondition));
  WriteFile(path_, bytes.substr(0, 1000));
  EXPECT_THAT(OperationRing::OpenBoard(path_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has 1000 bytes")));
  EXPECT_THAT(ReadBoard(path_), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(BoardFile, ThatIsNoneOrGoneIsNamed) {
  WriteFile(path_, std::string(kBoardBytes, 'x'));
  EXPECT_THAT(OperationRing::OpenBoard(path_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no progress board")));
  EXPECT_THAT(ReadBoard(path_), StatusIs(absl::StatusCode::kInvalidArgument));
  const std::string gone = directory_.File("gone");
  EXPECT_THAT(OperationRing::OpenBoard(gone),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("MUSTER_BOARD=" + gone)));
  EXPECT_THAT(ReadBoard(gone), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(BoardFile, WithGarbageInItIsReadWithoutHarm) {
  ASSERT_THAT(CreateBoard(path_), IsOk());
  std::string bytes = ReadFile(path_);
  for (size_t i = sizeof(BoardHeader); i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37);
  WriteFile(path_, bytes);
  const auto snapshot = ReadBoard(path_);
  ASSERT_THAT(snapshot, IsOk());
  for (const auto& record : snapshot->operations) {
    EXPECT_LE(record.kind, OperationKind::kRecv);
    EXPECT_FALSE(Describe(*snapshot, record).empty());
  }
}

}  // namespace
}  // namespace muster::agent
