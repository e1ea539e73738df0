// A worker's progress board from both ends: the agent makes and reads it, the runtime writes it.
#include "agent/process/board_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/marks.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/comm/operation_ring.h"

namespace muster::agent {
namespace {

using ::muster::comm::OperationRing;
using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BoardMemory, IsEmptyAndOnNoDiskWhenMade) {
  const auto board = BoardMemory::Create();
  ASSERT_THAT(board, IsOk());
  struct stat info {};
  ASSERT_EQ(::stat(board->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_size, static_cast<off_t>(kBoardBytes));
  EXPECT_LT(info.st_blocks * 512, info.st_size / 8) << "unmarked, it costs no memory";
  char target[64] = {};
  ASSERT_GT(::readlink(board->path().c_str(), target, sizeof(target) - 1), 0);
  EXPECT_STREQ(target, "/memfd:muster-board (deleted)");
  const auto snapshot = board->Read();
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, 0);
  EXPECT_FALSE(snapshot->step.has_value());
  EXPECT_TRUE(snapshot->operations.empty());
}

TEST(BoardMemory, IsReadWhileTheWorkerHasItOpen) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  auto board = OperationRing::OpenBoard(memory->path());
  ASSERT_THAT(board, IsOk());
  const uint64_t before = FingerprintOf(memory->board());
  (*board)->MarkProgress(7, Phase::kForward);
  EXPECT_NE(FingerprintOf(memory->board()), before);
  const auto snapshot = memory->Read();
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, ::getpid());
  EXPECT_EQ(snapshot->step, 7);
  EXPECT_EQ(snapshot->phase, Phase::kForward);
}

TEST(BoardMemory, TellsWhetherTheProgramWaitsForAnOperation) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  auto board = OperationRing::OpenBoard(memory->path());
  ASSERT_THAT(board, IsOk());
  const auto ticket = (*board)->Record(0, {}, 0, MonoNow());
  EXPECT_FALSE(IsWaiting(memory->board())) << "called, and it does something else meanwhile";
  (*board)->SetAwaited(ticket, true);
  EXPECT_TRUE(IsWaiting(memory->board()));
  (*board)->SetState(ticket, OperationState::kDone);
  EXPECT_FALSE(IsWaiting(memory->board()));
}

TEST(BoardMemory, HearsTheMarksOfAProgramInC) {
  static_assert(offsetof(ProgressBoard, waited_ns) == MUSTER_BOARD_WAITED_AT);
  static_assert(MUSTER_FORWARD == static_cast<int>(Phase::kForward) &&
                MUSTER_EVALUATE == static_cast<int>(Phase::kEvaluate) &&
                MUSTER_END == static_cast<int>(Phase::kEnd));
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  ::setenv("MUSTER_BOARD", memory->path().c_str(), 1);
  muster_mark(7, MUSTER_REDUCE);
  muster_mark(7, MUSTER_UPDATE);
  muster_mark(8, MUSTER_IDLE);
  ::unsetenv("MUSTER_BOARD");
  const auto snapshot = memory->Read();
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->pid, ::getpid());
  EXPECT_EQ(snapshot->step, 8);
  EXPECT_EQ(snapshot->phase, Phase::kIdle);
  EXPECT_EQ(memory->board().num_steps, 2);
  EXPECT_GT(memory->board().waited_ns, 0) << "of the time in reduce";
}

TEST(BoardMemory, CannotBeCutShortByAWorker) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  EXPECT_NE(::truncate(memory->path().c_str(), 0), 0);
  EXPECT_THAT(memory->Read(), IsOk());
}

// Runs in a child: an all-reduce that is done, and a barrier that the other rank never joins.
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

TEST(BoardMemory, ShowsWhatAWorkerThatWasKilledDidLast) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) RunWorkerAndDie(memory->path());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);

  const auto snapshot = memory->Read();
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

// A board of this version as bytes that a test may spoil.
std::string BoardBytes() {
  std::string bytes(kBoardBytes, '\0');
  const BoardHeader header = NewBoardHeader();
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

void Overwrite(const std::string& path, const std::string& bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY));
  ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

TEST(BoardMemory, OfAnotherVersionOrSizeIsRefusedByBothEnds) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  std::string bytes = BoardBytes();
  const uint32_t later = kBoardVersion + 1;
  std::memcpy(&bytes[offsetof(BoardHeader, version)], &later, sizeof(later));
  Overwrite(memory->path(), bytes);
  EXPECT_THAT(OperationRing::OpenBoard(memory->path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("MUSTER_BOARD=" + memory->path()),
                             HasSubstr(absl::StrCat("version ", later)),
                             HasSubstr(absl::StrCat("expected version ", kBoardVersion)))));
  EXPECT_THAT(memory->Read(), StatusIs(absl::StatusCode::kFailedPrecondition));
  const TemporaryDirectory directory;
  WriteFile(directory.File("short"), BoardBytes().substr(0, 1000));
  EXPECT_THAT(OperationRing::OpenBoard(directory.File("short")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has 1000 bytes")));
}

TEST(BoardMemory, ThatIsNoneOrGoneIsNamed) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  Overwrite(memory->path(), std::string(kBoardBytes, 'x'));
  EXPECT_THAT(OperationRing::OpenBoard(memory->path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a progress board")));
  EXPECT_THAT(memory->Read(), StatusIs(absl::StatusCode::kInvalidArgument));
  const std::string gone = "/proc/self/fd/9999";
  EXPECT_THAT(OperationRing::OpenBoard(gone),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("MUSTER_BOARD=" + gone)));
}

TEST(BoardMemory, WithGarbageInItIsReadWithoutHarm) {
  const auto memory = BoardMemory::Create();
  ASSERT_THAT(memory, IsOk());
  std::string bytes = BoardBytes();
  for (size_t i = sizeof(BoardHeader); i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37);
  Overwrite(memory->path(), bytes);
  FingerprintOf(memory->board());
  const auto snapshot = memory->Read();
  ASSERT_THAT(snapshot, IsOk());
  for (const auto& record : snapshot->operations) {
    EXPECT_LE(record.kind, OperationKind::kRecv);
    EXPECT_FALSE(Describe(*snapshot, record).empty());
  }
}

}  // namespace
}  // namespace muster::agent
