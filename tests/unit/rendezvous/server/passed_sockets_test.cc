#include "rendezvous/server/passed_sockets.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Descriptors 3 and 4, which are given back at the end.
class PassedSockets : public ::testing::Test {
 protected:
  PassedSockets() {
    for (int i = 0; i < 2; ++i) before_[i].reset(::fcntl(3 + i, F_DUPFD_CLOEXEC, 10));
  }
  ~PassedSockets() override {
    for (int i = 0; i < 2; ++i) {
      ::close(3 + i);
      if (before_[i]) ::dup2(before_[i].get(), 3 + i);
    }
  }

  // On 127.0.0.1, as descriptor `number`; returns its port.
  static int Pass(int number, int type, bool listens) {
    UniqueFd low(::socket(AF_INET, type, 0));
    const UniqueFd socket(::fcntl(low.get(), F_DUPFD_CLOEXEC, 10));
    low.reset();
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket.get(), any, length), 0);
    if (listens) {
      EXPECT_EQ(::listen(socket.get(), 1), 0);
    }
    EXPECT_EQ(::getsockname(socket.get(), any, &length), 0);
    EXPECT_EQ(::dup2(socket.get(), number), number);
    return ntohs(address.sin_port);
  }
  static auto Take(const std::string& number, int pid = ::getpid()) {
    return TakePassedSockets({{"LISTEN_PID", absl::StrCat(pid)}, {"LISTEN_FDS", number}});
  }

 private:
  UniqueFd before_[2];
};

TEST_F(PassedSockets, AreThoseOfThisProcess) {
  const int first = Pass(3, SOCK_STREAM, true);
  const int second = Pass(4, SOCK_STREAM, true);
  EXPECT_THAT(TakePassedSockets({}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(TakePassedSockets({{"LISTEN_FDS", "2"}}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Take("2", ::getppid()), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Take("0"), IsOkAndHolds(IsEmpty()));
  const auto taken = Take("2");
  ASSERT_THAT(taken, IsOkAndHolds(SizeIs(2)));
  EXPECT_EQ((*taken)[0].address, (Endpoint{"127.0.0.1", first}));
  EXPECT_EQ((*taken)[1].address, (Endpoint{"127.0.0.1", second}));
  EXPECT_EQ((*taken)[1].socket.get(), 4);
  EXPECT_EQ(::fcntl(4, F_GETFD), FD_CLOEXEC);
}

TEST_F(PassedSockets, ThatDoNotListenAreRefused) {
  Pass(3, SOCK_STREAM, false);
  EXPECT_THAT(Take("1").status().message(), HasSubstr("descriptor 3 of LISTEN_FDS is not a TCP"));
  Pass(3, SOCK_DGRAM, false);
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
