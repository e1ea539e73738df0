#include "launcher/sight/stacks_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

InquiryPart PartOf(const std::string& node, int first_rank,
                   const std::vector<hangs::RankReport>& ranks) {
  return {.node = node,
          .first_rank = first_rank,
          .num_ranks = static_cast<int>(ranks.size()),
          .body = status::ToJson(status::MakeStacks(ranks, 65536))};
}

std::vector<InquiryPart> EightRanks() {
  std::vector<InquiryPart> parts;
  for (int node = 0; node < 2; ++node) {
    std::vector<hangs::RankReport> ranks;
    for (int rank = 4 * node; rank < 4 * node + 4; ++rank) {
      const bool is_last = rank == 7;
      ranks.push_back({.rank = rank,
                       .pid = 100 + rank,
                       .doing = "asleep",
                       .frames = {is_last     ? "read"
                                  : rank == 2 ? "poll"
                                              : "epoll_wait",
                                  "main"},
                       .python = {is_last ? "load at data.py:9" : "step at train.py:26"}});
    }
    parts.push_back(PartOf(node == 0 ? "node1" : "node2", 4 * node, ranks));
  }
  return parts;
}

TEST(StacksText, MergesRanksThatAreAtTheSamePlaceInPython) {
  EXPECT_EQ(StacksText(EightRanks()),
            "ranks 0-6:\n"
            "  Python, innermost first:\n"
            "    step at train.py:26\n"
            "  native of ranks 0, 1 and 3-6, innermost first:\n"
            "    epoll_wait\n"
            "    main\n"
            "  native of rank 2, innermost first:\n"
            "    poll\n"
            "    main\n"
            "rank 7:\n"
            "  pid 107, asleep\n"
            "  Python, innermost first:\n"
            "    load at data.py:9\n"
            "  native, innermost first:\n"
            "    read\n"
            "    main\n");
}

TEST(StacksText, NamesWhoHasNotAnswered) {
  std::vector<InquiryPart> parts = EightRanks();
  parts[1].status = absl::UnavailableError("its agent does not answer");
  EXPECT_THAT(StacksText(parts), AllOf(HasSubstr("ranks 0-3:"), Not(HasSubstr("rank 7:")),
                                       HasSubstr("node2 (ranks 4-7): its agent does not answer")));
}

TEST(StacksText, TakesAnAnswerThatCannotBeReadForNone) {
  std::vector<InquiryPart> parts = EightRanks();
  parts[1].body = "[[[[";
  EXPECT_THAT(StacksText(parts), HasSubstr("node2 (ranks 4-7): the stacks is not JSON"));
}

TEST(StacksText, LetsNoMemberSpeakToTheTerminal) {
  const auto parts = {PartOf("node1", 0, {{.rank = 0, .frames = {"\x1b[2J", "main"}}})};
  EXPECT_THAT(StacksText(parts), AllOf(Not(HasSubstr("\x1b")), HasSubstr("<U+001B>[2J")));
}

TEST(StacksJson, HasGroupsRanksAndWhoHasNotAnswered) {
  std::vector<InquiryPart> parts = EightRanks();
  parts[1].status = absl::UnavailableError("gone");
  const auto json = nlohmann::json::parse(StacksJson(parts));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["groups"].size(), 2u);
  EXPECT_EQ(json["ranks"].size(), 4u);
  EXPECT_EQ(json["unanswered"][0]["node"], "node2");
  EXPECT_EQ(json["unanswered"][0]["ranks"], "4-7");
}

}  // namespace
}  // namespace muster::launcher
