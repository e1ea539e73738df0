#include "proto/io/http_door.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/time/time.h"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using asio::ip::tcp;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

class Http : public ::testing::Test {
 protected:
  void Listen(absl::Duration patience = absl::Hours(1)) {
    MakeDoor(patience);
    const absl::StatusOr<int> port = door_->Listen("127.0.0.1", 0);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
  }
  void MakeDoor(absl::Duration patience) {
    const auto serve = [this](const HttpRequest& request, HttpDoor::Tell tell) {
      ++num_served_;
      if (request.path == "/hold") return held_.push_back(std::move(tell));
      tell({.body = request.path + "\n"});
    };
    door_ = std::make_unique<HttpDoor>(loop_, serve, patience);
  }
  std::unique_ptr<tcp::socket> Connect() {
    auto client = std::make_unique<tcp::socket>(loop_, tcp::v4());
    client->connect({asio::ip::address_v4::loopback(), static_cast<asio::ip::port_type>(port_)});
    return client;
  }
  // Runs the loop until the other side has closed the connection; what came until then.
  std::string AwaitEnd(tcp::socket& client) {
    std::string bytes(10000, '\0');
    bool is_over = false;
    asio::async_read(client, asio::buffer(bytes), [&](const asio::error_code&, size_t length) {
      bytes.resize(length);
      is_over = true;
    });
    loop_.restart();
    for (int i = 0; i < 600 && !is_over; ++i) loop_.run_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(is_over);
    return is_over ? bytes : "";
  }
  std::string Ask(const std::string& head) {
    const auto client = Connect();
    asio::write(*client, asio::buffer(head));
    return AwaitEnd(*client);
  }

  asio::io_context loop_;
  int port_ = 0;
  int num_served_ = 0;
  std::vector<HttpDoor::Tell> held_;
  std::unique_ptr<HttpDoor> door_;
};

TEST_F(Http, AnswersWhatIsAskedAndCloses) {
  Listen();
  const std::string answer = Ask("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n/metrics\n"));
}

TEST_F(Http, RefusesWhatIsNoGet) {
  Listen();
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\n\r\n"), HasSubstr("405"));
  EXPECT_THAT(Ask("hello\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nX: " + std::string(kHttpHeadBytesMax, 'x')),
              HasSubstr("the head is too long"));
  EXPECT_EQ(num_served_, 0);
}

TEST_F(Http, ServesSoManyAtATimeAndThenTheNext) {
  Listen();
  std::vector<std::unique_ptr<tcp::socket>> clients;
  for (int i = 0; i < kHttpConnectionsMax + 1; ++i) {
    clients.push_back(Connect());
    asio::write(*clients.back(), asio::buffer(std::string("GET /hold HTTP/1.1\r\n\r\n")));
  }
  for (int i = 0; i < 40 && num_served_ < kHttpConnectionsMax; ++i) {
    loop_.run_for(std::chrono::milliseconds(50));
  }
  loop_.run_for(std::chrono::milliseconds(100));
  EXPECT_EQ(num_served_, kHttpConnectionsMax);
  held_.front()({.body = "now\n"});
  EXPECT_THAT(AwaitEnd(*clients.front()), EndsWith("now\n"));
  for (int i = 0; i < 40 && num_served_ == kHttpConnectionsMax; ++i) {
    loop_.run_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(num_served_, kHttpConnectionsMax + 1);
}

TEST_F(Http, LetsTheOldestSilentConnectionGoForANewOne) {
  Listen();
  const auto asking = Connect();
  asio::write(*asking, asio::buffer(std::string("GET /hold HTTP/1.1\r\n\r\n")));
  std::vector<std::unique_ptr<tcp::socket>> silent;
  for (int i = 1; i < kHttpConnectionsMax; ++i) silent.push_back(Connect());
  asio::write(*silent.front(), asio::buffer(std::string("GET /half")));
  for (int i = 0; i < 40 && num_served_ == 0; ++i) loop_.run_for(std::chrono::milliseconds(50));
  ASSERT_EQ(num_served_, 1);

  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("/metrics\n"));

  EXPECT_EQ(AwaitEnd(*silent.front()), "");
  asio::write(*silent.back(), asio::buffer(std::string("GET /late HTTP/1.1\r\n\r\n")));
  EXPECT_THAT(AwaitEnd(*silent.back()), EndsWith("/late\n"));
  ASSERT_EQ(held_.size(), 1u);
  held_.front()({.body = "now\n"});
  EXPECT_THAT(AwaitEnd(*asking), EndsWith("now\n"));
}

TEST_F(Http, ClosesAConnectionThatAsksNothing) {
  Listen(absl::Milliseconds(100));
  const auto client = Connect();
  EXPECT_EQ(AwaitEnd(*client), "");
  EXPECT_EQ(num_served_, 0);
}

TEST_F(Http, AnAnswerThatComesTooLateIsNobodys) {
  Listen(absl::Seconds(2));
  EXPECT_EQ(Ask("GET /hold HTTP/1.1\r\n\r\n"), "");
  ASSERT_EQ(held_.size(), 1u);
  held_.front()({.body = "late\n"});
  loop_.restart();
  loop_.poll();
}

TEST_F(Http, ListensAtNumericAddressesAlone) {
  MakeDoor(absl::Hours(1));
  EXPECT_EQ(door_->Listen("node1", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(door_->Listen("192.0.2.1", 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(door_->Listen("localhost", 0).ok());
}

// UndefinedBehaviorSanitizer looks at memory through pipes, which it then cannot open.
#ifndef ABSL_HAVE_ADDRESS_SANITIZER
TEST_F(Http, WaitsWhereDescriptorsRunOutAndAnswersWhenThereAreSomeAgain) {
  Listen();
  tcp::socket client(loop_, tcp::v4());
  {
    const NoDescriptors none;
    client.connect({asio::ip::address_v4::loopback(), static_cast<asio::ip::port_type>(port_)});
    asio::write(client, asio::buffer(std::string("GET /there HTTP/1.1\r\n\r\n")));
    // It looks ten times a second, each in two steps.
    EXPECT_LE(loop_.run_for(std::chrono::milliseconds(500)), 20u);
  }
  EXPECT_THAT(AwaitEnd(client), HasSubstr("there"));
}
#endif

}  // namespace
}  // namespace muster
