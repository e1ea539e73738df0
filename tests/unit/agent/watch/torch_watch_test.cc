#include "agent/watch/torch_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/watch/torch_hook.h"
#include "asio/io_context.hpp"
#include "tests/support/files.h"
#include "tests/unit/agent/watch/fake_torch_server.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using testing::FakeTorchServer;
using ::testing::IsEmpty;
using testing::RecorderWithOneCall;
using ::testing::SizeIs;

constexpr absl::Duration kLongEnough = absl::Seconds(60);

class TorchWatchTest : public ::testing::Test {
 protected:
  // Starts a round of two ranks, of which the watch may have heard before.
  void Start() { watch_.StartRound(0, {directory_.File("0"), directory_.File("1")}); }
  bool RunUntil(const std::function<bool()>& condition) {
    const MonoTime end = MonoNow() + kLongEnough;
    while (!condition() && MonoNow() < end) {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  void Listen() {
    watch_.Tick(MonoNow(), /*is_somebody_silent=*/false);
    ASSERT_TRUE(RunUntil([this] { return watch_.Find(0) != nullptr; }));
  }
  std::vector<hangs::RankCalls> Ask() {
    std::optional<std::vector<hangs::RankCalls>> answer;
    watch_.AskLastCalls(4, kLongEnough,
                        [&](std::vector<hangs::RankCalls> calls) { answer = std::move(calls); });
    EXPECT_TRUE(RunUntil([&] { return answer.has_value(); }));
    return answer.value_or(std::vector<hangs::RankCalls>());
  }

  testing::TemporaryDirectory directory_;
  asio::io_context loop_;
  TorchWatch watch_{loop_};
};

// The recorder takes a rank 5 ms to write out. Another rank moves, and is asked each second.
TEST_F(TorchWatchTest, AsksASilentRankThatAnswersTheSameEverMoreRarely) {
  constexpr int kQuestions = 3;  // the recorders, and the counters
  Start();
  FakeTorchServer silent(directory_.File("0"), RecorderWithOneCall(8));
  int num_elements = 1;
  FakeTorchServer moves(
      directory_.File("1"), [&] { return RecorderWithOneCall(++num_elements); }, false);
  const MonoTime start = MonoNow();
  std::vector<int> asked;  // in which seconds
  for (int second = 0; second < 60; ++second) {
    const int before = silent.num_asked();
    const std::optional<TorchRank> other =
        watch_.Find(1) == nullptr ? std::nullopt : std::optional(*watch_.Find(1));
    watch_.Tick(start + absl::Seconds(second), /*is_somebody_silent=*/true);
    ASSERT_TRUE(RunUntil([&] {
      return watch_.Find(1) != nullptr && (!other || watch_.Find(1)->token != other->token);
    }));
    if (silent.num_asked() == before + kQuestions) asked.push_back(second);
  }
  EXPECT_THAT(asked, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 23, 33, 43, 53));
  ASSERT_NE(watch_.Find(0), nullptr) << "what it has answered stays";
  EXPECT_TRUE(watch_.Find(0)->answers);
}

TEST_F(TorchWatchTest, CountsHowOftenARankIsSeenInOneCallOfOneFunction) {
  Start();
  FakeTorchServer server(directory_.File("0"), RecorderWithOneCall(8));
  std::atomic<const char*> function = "f";
  std::atomic<int> line = 1;
  FakeTorchServer python(
      TorchPythonPath(directory_.File("0")),
      [&] {
        return absl::StrCat(R"({"stack":[[")", function.load(), R"(","/a.py",)", ++line, "]]}");
      },
      false);
  const auto listen_until = [&](const std::function<bool(const TorchRank&)>& condition) {
    return RunUntil([&] {
      watch_.Tick(MonoNow(), /*is_somebody_silent=*/true);
      const TorchRank* rank = watch_.Find(0);
      return rank != nullptr && condition(*rank);
    });
  };
  EXPECT_TRUE(listen_until([](const auto& rank) { return rank.times_in_function == 4; }))
      << "another line is no other function";
  function = "g";
  EXPECT_TRUE(listen_until([](const auto& rank) {
    return absl::StartsWith(rank.python.frames[0], "g at") && rank.times_in_function == 1;
  }));
}

using LastCalls = TorchWatchTest;

TEST_F(LastCalls, AreAskedOfThoseThatServeByTheirRanks) {
  Start();
  EXPECT_FALSE(watch_.HasServed());
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  EXPECT_TRUE(watch_.HasServed());
  const std::vector<hangs::RankCalls> ranks = Ask();
  ASSERT_THAT(ranks, SizeIs(1));
  EXPECT_EQ(ranks[0].rank, 5);
  EXPECT_EQ(ranks[0].age, absl::ZeroDuration());
  ASSERT_THAT(ranks[0].calls, SizeIs(1));
  EXPECT_EQ(ranks[0].calls[0].operation.bytes, 32);
}

TEST_F(LastCalls, AreThoseThatWereHeardBeforeWhereARankHasGone) {
  Start();
  {
    FakeTorchServer server(directory_.File("0"), RecorderWithOneCall(8));
    Listen();
  }
  EXPECT_TRUE(watch_.HasServed());
  const std::vector<hangs::RankCalls> ranks = Ask();
  ASSERT_THAT(ranks, SizeIs(1));
  EXPECT_EQ(ranks[0].rank, 4);
  EXPECT_GT(ranks[0].age, absl::ZeroDuration());
  EXPECT_THAT(ranks[0].calls, SizeIs(1));
}

TEST_F(LastCalls, AreThoseThatARankHasLeftAsItEnded) {
  Start();
  {
    FakeTorchServer server(directory_.File("0"), RecorderWithOneCall(8));
    Listen();
  }
  const std::string body = RecorderWithOneCall(16);
  testing::WriteFile(
      TorchLastWordsPath(directory_.File("0")),
      absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  testing::WriteFile(TorchLastWordsPath(directory_.File("1")), "no answer");
  const std::vector<hangs::RankCalls> ranks = Ask();
  ASSERT_THAT(ranks, SizeIs(1));
  EXPECT_EQ(ranks[0].age, absl::ZeroDuration());
  ASSERT_THAT(ranks[0].calls, SizeIs(1));
  EXPECT_EQ(ranks[0].calls[0].operation.bytes, 64);
}

TEST_F(LastCalls, OfTheRoundBeforeAreForgotten) {
  Start();
  {
    FakeTorchServer server(directory_.File("0"), RecorderWithOneCall(8));
    Listen();
  }
  Start();
  EXPECT_THAT(Ask(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
