// Messages through shared memory, between threads that stand for processes, and between processes
// that end in the middle.
#include "worker_runtime/comm/shm/shm_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/base/mono_time.h"
#include "tests/support/status_matchers.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kSlot = 7;

// Members 0 and 1 of one process, attached to each other.
struct Pair {
  Pair() {
    for (int i = 0; i < 2; ++i) ends.push_back(*ShmLinks::Create(i, 2));
    EXPECT_THAT(ends[0]->Attach(1, ends[1]->address()), IsOk());
    EXPECT_THAT(ends[1]->Attach(0, ends[0]->address()), IsOk());
  }
  std::vector<std::unique_ptr<ShmLinks>> ends;
};

std::vector<uint8_t> Bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  std::iota(bytes.begin(), bytes.end(), uint8_t{3});
  return bytes;
}

TEST(ShmLinks, CarryMessagesOfAnySizeInTheirOrder) {
  Pair pair;
  // Below and beyond a grain, a piece and the whole ring.
  const std::vector<size_t> sizes = {1, 15, 16, 17, 1000, 65536, 65537, 1 << 19, 5'000'001};
  std::thread sender([&] {
    WaitPoint point;
    for (const size_t size : sizes) {
      const std::vector<uint8_t> bytes = Bytes(size);
      const auto send =
          pair.ends[0]->Send(1, Stream::kCollectives, kSlot, bytes.data(), bytes.size());
      ASSERT_THAT(pair.ends[0]->Wait(*send, point), IsOk());
    }
  });
  WaitPoint point;
  for (const size_t size : sizes) {
    std::vector<uint8_t> bytes(size);
    const auto receive =
        pair.ends[1]->Receive(0, Stream::kCollectives, kSlot, bytes.data(), bytes.size());
    ASSERT_THAT(pair.ends[1]->Wait(*receive, point), IsOk());
    EXPECT_EQ(bytes, Bytes(size));
  }
  sender.join();
}

TEST(ShmLinks, SendInBothDirectionsAtOnceWithoutARoundOfTheirOwn) {
  Pair pair;
  const auto exchange = [&](int self) {
    const std::vector<uint8_t> out = Bytes(3 << 20);
    std::vector<uint8_t> in(out.size());
    WaitPoint point;
    ShmLinks& links = *pair.ends[self];
    const auto receive = links.Receive(1 - self, Stream::kCollectives, kSlot, in.data(), in.size());
    const auto send = links.Send(1 - self, Stream::kCollectives, kSlot, out.data(), out.size());
    ASSERT_THAT(links.Wait(*receive, point), IsOk());
    ASSERT_THAT(links.Wait(*send, point), IsOk());
    EXPECT_EQ(in, out);
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
}

TEST(ShmLinks, ASendIsNotDoneBeforeItsReceive) {
  Pair pair;
  WaitPoint point;
  const uint8_t byte = 1;
  const auto send = pair.ends[0]->Send(1, Stream::kTransfers, kSlot, &byte, 1);
  std::thread soon([&] {
    absl::SleepFor(absl::Milliseconds(50));
    point.Interrupt();
  });
  EXPECT_THAT(pair.ends[0]->Wait(*send, point), StatusIs(absl::StatusCode::kAborted));
  soon.join();
}

TEST(ShmLinks, ATransferHoldsUpNoCollective) {
  Pair pair;
  WaitPoint point;
  const uint8_t sent = 5;
  uint8_t received = 0;
  const auto transfer = pair.ends[0]->Send(1, Stream::kTransfers, kSlot, &sent, 1);
  const auto send = pair.ends[0]->Send(1, Stream::kCollectives, kSlot, &sent, 1);
  const auto receive = pair.ends[1]->Receive(0, Stream::kCollectives, kSlot, &received, 1);
  EXPECT_THAT(pair.ends[1]->Wait(*receive, point), IsOk());
  EXPECT_EQ(received, 5);
}

TEST(ShmLinks, WhatWasWrittenBeforeAMemberClosedIsStillRead) {
  Pair pair;
  WaitPoint point;
  uint8_t bytes[2] = {1, 2};
  uint8_t first = 0, second = 0;
  const auto send = pair.ends[0]->Send(1, Stream::kCollectives, kSlot, bytes, 1);
  pair.ends[0]->Close();
  const auto read = pair.ends[1]->Receive(0, Stream::kCollectives, kSlot, &first, 1);
  EXPECT_THAT(pair.ends[1]->Wait(*read, point), IsOk());
  EXPECT_EQ(first, 1);
  const auto never = pair.ends[1]->Receive(0, Stream::kCollectives, kSlot, &second, 1);
  EXPECT_THAT(pair.ends[1]->Wait(*never, point),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
}

TEST(ShmLinks, AnotherSegmentAtAnAddressIsNotTaken) {
  Pair pair;
  auto links = *ShmLinks::Create(0, 2);
  const std::string address = pair.ends[1]->address();
  const std::string with_another_token = address.substr(0, address.rfind('/')) + "/12345";
  EXPECT_THAT(links->Attach(1, with_another_token),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not the one that made it")));
  EXPECT_THAT(links->Attach(1, "nonsense"), StatusIs(absl::StatusCode::kUnavailable));
}

// Runs `act` in a process of its own, which ends by SIGKILL when it returns.
pid_t InChild(int ready_fd, const std::function<void()>& act) {
  const pid_t child = fork();
  if (child != 0) return child;
  act();
  EXPECT_EQ(write(ready_fd, "x", 1), 1);
  kill(getpid(), SIGKILL);
  _exit(1);
}

TEST(ShmLinks, AMemberThatIsKilledInTheMiddleOfAMessageIsNoticedAndLeavesNothingBehind) {
  auto own = *ShmLinks::Create(0, 2);
  int to_parent[2], to_child[2];
  ASSERT_EQ(pipe(to_parent), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const std::vector<uint8_t> message = Bytes(3 << 20);  // more than the ring holds
  const pid_t child = InChild(to_parent[1], [&] {
    auto links = *ShmLinks::Create(1, 2);
    if (!links->Attach(0, own->address()).ok()) _exit(2);
    const std::string address = links->address() + "\n";
    if (write(to_parent[1], address.data(), address.size()) < 0) _exit(3);
    char byte = 0;
    if (read(to_child[0], &byte, 1) != 1) _exit(4);
    // Never waited for, and never taken off its queue: the process ends first.
    links->Send(0, Stream::kCollectives, kSlot, message.data(), message.size()).release();
    links.release();
  });
  std::string address;
  for (char byte = 0; read(to_parent[0], &byte, 1) == 1 && byte != '\n';) address += byte;
  ASSERT_THAT(own->Attach(1, address), IsOk());
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  // It must have left off: else it could send all of it into a ring that is being emptied.
  char left_off = 0;
  ASSERT_EQ(read(to_parent[0], &left_off, 1), 1);
  std::vector<uint8_t> received(message.size());
  const auto receive =
      own->Receive(1, Stream::kCollectives, kSlot, received.data(), received.size());
  WaitPoint point;
  EXPECT_THAT(own->Wait(*receive, point),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("process has ended")));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
  EXPECT_NE(access(("/proc/" + address.substr(0, address.find('/'))).c_str(), F_OK), 0);
}

}  // namespace
}  // namespace muster::comm
