#include "rendezvous/server/passed_sockets.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/loopback_port.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::LoopbackPort;
using ::muster::testing::PortUse;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Descriptors 3 and 4, which nothing else gets meanwhile, and which are given back at the end.
class PassedSockets : public ::testing::Test {
 protected:
  PassedSockets() {
    for (int i = 0; i < 2; ++i) {
      before_[i].reset(::fcntl(3 + i, F_DUPFD_CLOEXEC, 10));
      Pass(STDERR_FILENO, 3 + i);
    }
  }
  ~PassedSockets() override {
    for (int i = 0; i < 2; ++i) {
      ::close(3 + i);
      if (before_[i]) ::dup2(before_[i].get(), 3 + i);
    }
  }

  static void Pass(int socket, int number) { EXPECT_EQ(::dup2(socket, number), number); }
  static auto Take(const std::string& number, int pid = ::getpid()) {
    return TakePassedSockets({{"LISTEN_PID", absl::StrCat(pid)}, {"LISTEN_FDS", number}});
  }

 private:
  UniqueFd before_[2];
};

TEST_F(PassedSockets, AreThoseOfThisProcess) {
  const LoopbackPort first(PortUse::kListening), second(PortUse::kListening);
  Pass(first.descriptor(), 3);
  Pass(second.descriptor(), 4);
  EXPECT_THAT(TakePassedSockets({}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(TakePassedSockets({{"LISTEN_FDS", "2"}}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Take("2", ::getppid()), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Take("0"), IsOkAndHolds(IsEmpty()));
  const auto taken = Take("2");
  ASSERT_THAT(taken, IsOkAndHolds(SizeIs(2)));
  EXPECT_EQ((*taken)[0].get(), 3);
  EXPECT_EQ((*taken)[1].get(), 4);
  EXPECT_EQ(::fcntl(4, F_GETFD), FD_CLOEXEC);
}

TEST_F(PassedSockets, ThatDoNotListenAreRefused) {
  const LoopbackPort silent(PortUse::kTaken);
  const UniqueFd datagrams(::socket(AF_INET, SOCK_DGRAM, 0));
  Pass(silent.descriptor(), 3);
  EXPECT_THAT(Take("1").status().message(), HasSubstr("descriptor 3 of LISTEN_FDS is not a TCP"));
  Pass(datagrams.get(), 3);
  EXPECT_THAT(Take("1").status().message(), HasSubstr("ListenStream=PORT, and Accept=no"));
  EXPECT_THAT(Take("1").status().message(), HasSubstr("descriptor 3")) << "it has been closed";
}

TEST_F(PassedSockets, AreOfANumber) {
  for (const char* number : {"", "two", "-1", "65"}) {
    EXPECT_THAT(Take(number).status().message(),
                HasSubstr(absl::StrCat("LISTEN_FDS=", number, ": expected a number from 0 to 64")));
  }
}

}  // namespace
}  // namespace muster::rendezvous
