#include "agent/torch_store/store_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "asio/ip/tcp.hpp"
#include "tests/support/status_matchers.h"

namespace muster::agent {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kHost[] = "127.0.0.1";

Assignment Place(int64_t node_rank) {
  return {.round = Round(0), .node_rank = NodeRank(node_rank), .num_nodes = 2, .world_size = 2};
}

int FreePort() {
  asio::io_context loop;
  asio::ip::tcp::acceptor acceptor(loop, {asio::ip::make_address(kHost), 0});
  return acceptor.local_endpoint().port();
}

bool IsServed(int port) {
  asio::io_context loop;
  asio::ip::tcp::socket socket(loop);
  asio::error_code error;
  socket.connect({asio::ip::make_address(kHost), static_cast<asio::ip::port_type>(port)}, error);
  return !error;
}

TEST(StoreHost, ServesTheStoreOnNode0UntilTheRoundEnds) {
  StoreHost host(StoreClients{});
  const int port = FreePort();
  host.StartRound(Place(0), kHost, port);
  ASSERT_THAT(host.status(), IsOk());
  EXPECT_TRUE(host.is_serving());
  EXPECT_TRUE(IsServed(port));
  host.EndRound();
  EXPECT_FALSE(host.is_serving());
  EXPECT_FALSE(IsServed(port));
}

TEST(StoreHost, ServesNothingOnOtherNodes) {
  StoreHost host(StoreClients{});
  const int port = FreePort();
  host.StartRound(Place(1), kHost, port);
  EXPECT_THAT(host.status(), IsOk());
  EXPECT_FALSE(host.is_serving());
  EXPECT_FALSE(IsServed(port));
}

TEST(StoreHost, AnswersWhoIsMissingWhileItServes) {
  StoreHost host(StoreClients{});
  host.StartRound(Place(0), kHost, FreePort());
  ASSERT_THAT(host.status(), IsOk());
  std::promise<size_t> answered;
  host.AskWhoIsMissing([&](const auto& gatherings) { answered.set_value(gatherings.size()); });
  auto answer = answered.get_future();
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(answer.get(), 0u);
}

TEST(StoreHost, SaysWhyItCannotServeAndForgetsItInTheNextRound) {
  asio::io_context loop;
  asio::ip::tcp::acceptor other(loop, {asio::ip::make_address(kHost), 0});
  StoreHost host(StoreClients{});
  host.StartRound(Place(0), kHost, other.local_endpoint().port());
  EXPECT_THAT(host.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("cannot serve PyTorch's store")));
  EXPECT_FALSE(host.is_serving());
  host.EndRound();
  host.StartRound(Place(1), kHost, other.local_endpoint().port());
  EXPECT_THAT(host.status(), IsOk());
}

}  // namespace
}  // namespace muster::agent
