#include "agent/health_port.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/loopback_port.h"

namespace muster::agent {
namespace {

using asio::ip::tcp;
using ::testing::HasSubstr;

// No descriptor is to be had while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &none);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken_.push_back(fd);
  }
  ~NoDescriptors() {
    for (const int fd : taken_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

// UndefinedBehaviorSanitizer looks at memory through pipes, which it then cannot open.
#ifndef ABSL_HAVE_ADDRESS_SANITIZER
TEST(HealthPort, WaitsWhereDescriptorsRunOutAndAnswersWhenThereAreSomeAgain) {
  asio::io_context loop;
  HealthPort port(loop);
  const testing::LoopbackPort number;
  ASSERT_TRUE(port.Listen(number.number()).ok());
  tcp::socket client(loop, tcp::v4());
  {
    const NoDescriptors none;
    client.connect(
        {asio::ip::address_v4::loopback(), static_cast<asio::ip::port_type>(number.number())});
    asio::write(client, asio::buffer(std::string("GET / HTTP/1.1\r\n\r\n")));
    // It looks ten times a second, each in two steps.
    EXPECT_LE(loop.run_for(std::chrono::milliseconds(500)), 20u);
  }
  std::string answer(1000, '\0');
  size_t length = 0;
  asio::async_read(client, asio::buffer(answer),
                   [&](const asio::error_code&, size_t n) { length = n; });
  for (int i = 0; i < 100 && length == 0; ++i) loop.run_for(std::chrono::milliseconds(100));
  answer.resize(length);
  EXPECT_THAT(answer, HasSubstr("alive"));
}
#endif

}  // namespace
}  // namespace muster::agent
