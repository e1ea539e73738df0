#include "agent/sight/metrics_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"

namespace muster::agent {
namespace {

using asio::ip::tcp;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Metrics : public ::testing::Test {
 protected:
  void Listen(const std::string& token) {
    const absl::StatusOr<int> port = door_.Listen({.host = "127.0.0.1", .port = 0}, token);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
  }
  std::string Get(const std::string& path, const std::string& more = "") {
    tcp::socket socket(loop_);
    socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<asio::ip::port_type>(port_)});
    asio::write(socket,
                asio::buffer(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: a\r\n", more, "\r\n")));
    std::string answer;
    bool has_ended = false;
    asio::async_read(socket, asio::dynamic_buffer(answer),
                     [&](const asio::error_code&, size_t) { has_ended = true; });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!has_ended && std::chrono::steady_clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(has_ended);
    return answer;
  }

  asio::io_context loop_;
  Lane lane_{"figures"};
  MetricsDoor door_{loop_,
                    lane_,
                    {.figures = [] { return AgentFigures{.run_id = "j7", .node = "node1"}; },
                     .ranks = [] { return std::vector<status::RankFigures>{{.rank = 3}}; },
                     .kernel_lines = [] { return std::vector<std::string>(); }}};
  int port_ = 0;
};

TEST_F(Metrics, AreToldToEveryoneWhereThereIsNoToken) {
  Listen("");
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("node=\"node1\""));
  EXPECT_THAT(answer, HasSubstr("rank=\"3\""));
}

TEST_F(Metrics, AreToldOnlyToThoseWhoShowTheToken) {
  Listen("secret");
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Get("/metrics", "Authorization: Bearer other\r\n"), Not(HasSubstr("node1")));
  EXPECT_THAT(Get("/metrics", "Authorization: Bearer secret\r\n"), HasSubstr("node=\"node1\""));
}

TEST_F(Metrics, AreAtOnePathAlone) {
  Listen("");
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
}

TEST_F(Metrics, LackTheFiguresOfTheNodeWhereADriverIsStuck) {
  Listen("");
  std::promise<void> end;
  const std::shared_future<void> is_over = end.get_future().share();
  for (int i = 0; i < Lane::kThreadsMax; ++i) {
    ASSERT_TRUE(lane_.Do(absl::Hours(1), [is_over] { is_over.wait(); }));
  }
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("node=\"node1\""));
  EXPECT_THAT(answer, Not(HasSubstr("rank=\"3\"")));
  end.set_value();
}

}  // namespace
}  // namespace muster::agent
