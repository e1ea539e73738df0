// What an agent answers when the server asks for this node's part.
#include "agent/sight/agent_sight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/status/figures.h"
#include "rendezvous/status/log_window.h"
#include "tests/support/files.h"
#include "tests/unit/agent/fake_link.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Sight : public ::testing::Test {
 protected:
  Sight() {
    options_.node.name = "node1";
    options_.run_directory = directory_.path();
    roster_.StartRound({.round = Round(0),
                        .num_nodes = 2,
                        .first_rank = Rank(4),
                        .local_world_size = 2,
                        .world_size = 6},
                       {});
  }
  // This node's part in what the server asks.
  InquiryPart Ask(const Inquiry& inquiry) {
    sight_.desk().OnInquiry(inquiry);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (link_.told.empty() && std::chrono::steady_clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    EXPECT_FALSE(link_.told.empty());
    return link_.told.empty() ? InquiryPart{} : link_.told.back().part;
  }

  asio::io_context loop_;
  testing::TemporaryDirectory directory_;
  AgentOptions options_;
  AgentCore core_{{}};
  WorkerRoster roster_;
  HangWatch hang_watch_{
      loop_, {.is_on = false}, [](int, const std::string&) {}, [](const hangs::NodeWord&) {}};
  FakeLink link_;
  AgentSight sight_{loop_,
                    {.options = options_,
                     .core = core_,
                     .roster = roster_,
                     .hang_watch = hang_watch_,
                     .link = link_,
                     .kernel_lines = [] { return std::vector<std::string>(); }}};
};

TEST_F(Sight, TellsFiguresOfItsNodeAndWhichRanksAreHere) {
  const InquiryPart part = Ask({.kind = InquiryKind::kFigures});
  EXPECT_EQ(part.node, "node1");
  EXPECT_EQ(part.first_rank, 4);
  EXPECT_EQ(part.num_ranks, 2);
  EXPECT_TRUE(part.status.ok()) << part.status;
  EXPECT_THAT(part.body, HasSubstr("memory_mib"));
}

TEST_F(Sight, RefusesAQuestionAboutLogsThatItCannotRead) {
  const InquiryPart part = Ask({.kind = InquiryKind::kLogs, .detail = "no JSON"});
  EXPECT_FALSE(part.status.ok());
  EXPECT_THAT(part.body, IsEmpty());
}

// Each is counted from, or names a file. A number that no int holds is not taken for another.
TEST_F(Sight, RefusesNumbersOfAQuestionAboutLogsThatAreOutOfBounds) {
  const auto place = [](const std::string& field) {
    return absl::StrCat("{\"places\": [{\"stream\": \"stdout\", ", field, "}]}");
  };
  for (const auto& [detail, why] : std::vector<std::pair<std::string, std::string>>{
           {place("\"attempt\": -2147483648"), "attempt is -2147483648, not in 0..10000000"},
           {place("\"attempt\": 2147483647"), "attempt is 2147483647, not in 0..10000000"},
           {place("\"attempt\": 4294967296"), "attempt is 4294967296, not in 0..10000000"},
           {place("\"attempt\": 1e300"), "attempt is 1e+300, not in 0..10000000"},
           {place("\"rank\": -1"), "rank is -1, not in 0..2147483647"},
           {place("\"offset\": -1"), "offset is -1, not in 0..1125899906842624"},
           {place("\"offset\": 18446744073709551615"), "offset is 18446744073709551615, not in"},
           {"{\"tail_lines\": -2}", "tail_lines is -2, not in -1..1125899906842624"},
           {"{\"places\": [{\"stream\": \"../x\"}]}", "stream is '../x', expected stdout or"}}) {
    link_.told.clear();
    const absl::Status status = Ask({.kind = InquiryKind::kLogs, .detail = detail}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << detail;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST_F(Sight, TakesThoseWhoAskForNewLinesForFollowersOfItsLogs) {
  Ask({.kind = InquiryKind::kLogs, .detail = status::ToJson(status::LogsAsk{})});
  EXPECT_FALSE(sight_.followers().AreThere(MonoNow()));
  link_.told.clear();
  Ask({.kind = InquiryKind::kLogs, .detail = status::ToJson(status::LogsAsk{.follows = true})});
  EXPECT_TRUE(sight_.followers().AreThere(MonoNow()));
}

}  // namespace
}  // namespace muster::agent
