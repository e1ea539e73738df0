// A real guardian, a link that closes when it is told to, and a run directory likewise.
#include "agent/agent_ending.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "asio/io_context.hpp"
#include "tests/support/files.h"
#include "tests/unit/agent/fake_link.h"

namespace muster::agent {
namespace {

class Ending : public ::testing::Test {
 protected:
  Ending() {
    auto handle = ForkGuardian();
    EXPECT_TRUE(handle.ok()) << handle.status();
    guardian_ = std::make_unique<GuardianClient>(loop_, *std::move(handle), GuardianListener{});
    std::filesystem::create_directory(runtime_directory_);
    ending_ = std::make_unique<AgentEnding>(
        loop_,
        AgentEndingOptions{.runtime_directory = runtime_directory_,
                           .settle_run_directory =
                               [this](std::function<void()> settled) {
                                 EXPECT_FALSE(std::filesystem::exists(runtime_directory_));
                                 settled_ = std::move(settled);
                               },
                           .on_finished =
                               [this](const JobOutcome& outcome) {
                                 ++num_finished_;
                                 exit_code_ = outcome.exit_code;
                               }},
        *guardian_, link_);
  }

  template <typename Predicate>
  bool RunUntil(Predicate done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  asio::io_context loop_;
  testing::TemporaryDirectory directory_;
  const std::string runtime_directory_ = directory_.File("runtime");
  FakeLink link_;
  std::function<void()> settled_;
  int num_finished_ = 0;
  int exit_code_ = 0;
  std::unique_ptr<AgentEnding> ending_;
  std::unique_ptr<GuardianClient> guardian_;
};

TEST_F(Ending, FinishesOnceTheRunDirectoryIsSettledAndThenTheLinkIsClosed) {
  ending_->Begin({.outcome = {.exit_code = 17}});
  EXPECT_TRUE(std::filesystem::exists(runtime_directory_)) << "the guardian has not ended";
  ASSERT_TRUE(RunUntil([this] { return settled_ != nullptr; }));
  settled_();
  EXPECT_EQ(num_finished_, 0);
  link_.on_closed();
  EXPECT_EQ(num_finished_, 1);
  EXPECT_EQ(exit_code_, 17);
}

TEST_F(Ending, FinishesOnceTheLinkIsClosedAndThenTheRunDirectoryIsSettled) {
  ending_->Begin({});
  link_.on_closed();
  ASSERT_TRUE(RunUntil([this] { return settled_ != nullptr; }));
  EXPECT_EQ(num_finished_, 0);
  settled_();
  EXPECT_EQ(num_finished_, 1);
}

TEST_F(Ending, EndsTheProcessesBelowThisOneAside) {
  guardian_.reset();  // it is one of them
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  bool has_ended = false;
  ending_->EndDescendants([&] { has_ended = true; });
  ASSERT_TRUE(RunUntil([&] { return has_ended; }));
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), -1) << "it has been reaped";
}

}  // namespace
}  // namespace muster::agent
