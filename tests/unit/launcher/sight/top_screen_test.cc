#include "launcher/sight/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  return lines;
}

InquiryPart Node(const std::string& name, int first_rank, status::FiguresOfNode figures) {
  return {.node = name,
          .first_rank = first_rank,
          .num_ranks = static_cast<int>(figures.ranks.size()),
          .body = status::ToJson(figures)};
}

TopFigures TwoRanks() {
  TopFigures figures;
  figures.page = {.job = "j7",
                  .health = {.state = status::kHealthy, .for_seconds = 250},
                  .round = {.round = 2},
                  .progress = {.step = 120, .steps_per_second = 3.25}};
  figures.parts = {Node("node1", 0,
                        {.node = {.cpus = 8, .cpu_percent = 40},
                         .ranks = {{.rank = 0,
                                    .pid = 10,
                                    .phase = "reduce",
                                    .step = 120,
                                    .cpu_percent = 98,
                                    .memory_mib = 2048,
                                    .gpus = {0}},
                                   {.rank = 1,
                                    .pid = 11,
                                    .phase = "forward",
                                    .step = 117,
                                    .cpu_percent = 5,
                                    .memory_mib = 20480,
                                    .gpus = {1}}},
                         .gpus = {{.index = 0,
                                   .busy_percent = 99,
                                   .memory_used_mib = 70000,
                                   .power_watts = 650.4,
                                   .celsius = 71,
                                   .sm_mhz = 1980},
                                  {.index = 1,
                                   .busy_percent = 12,
                                   .memory_used_mib = 100,
                                   .power_watts = 90,
                                   .celsius = 40,
                                   .sm_mhz = 1200,
                                   .slowed_by = "heat",
                                   .fault = "Xid 79"}}})};
  return figures;
}

TEST(TopScreen, HasALineForEachRankTheSlowestFirst) {
  EXPECT_EQ(TopScreen(TwoRanks(), {.lines = 0, .columns = 200}),
            "job j7: healthy for 4m10s\n"
            "round 2, 1 node, 2 ranks; step 120, 3.25/s; CPUs 40 % busy\n"
            " RANK NODE          STEP   LAG PHASE    CPU%    MEM GPU%   GMEM    W  C  MHZ NOTE\n"
            "    1 node1          117     3 forward     5    20G   12   100M   90 40 1200 Xid 79, "
            "slowed: heat\n"
            "    0 node1          120     0 reduce     98  2048M   99    68G  650 71 1980 \n");
}

TEST(TopScreen, SortsAndFilters) {
  const TopFigures figures = TwoRanks();
  const auto second_rank_line = [&](TopView view) {
    view.lines = 0;
    return Lines(TopScreen(figures, view))[3];
  };
  EXPECT_THAT(second_rank_line({.sort = TopSort::kRank}), StartsWith("    0"));
  EXPECT_THAT(second_rank_line({.sort = TopSort::kCpu}), StartsWith("    0"));
  EXPECT_THAT(second_rank_line({.sort = TopSort::kMemory}), StartsWith("    1"));
  EXPECT_THAT(second_rank_line({.sort = TopSort::kGpu}), StartsWith("    1"));
  EXPECT_EQ(Lines(TopScreen(figures, {.filter = "0", .lines = 0})).size(), 4u);
  EXPECT_EQ(Lines(TopScreen(figures, {.filter = "node2", .lines = 0})).size(), 3u);
}

TEST(TopScreen, FitsAnyTerminal) {
  for (const size_t lines : {1, 3, 10, 24, 60}) {
    const auto drawn = Lines(TopScreen(TwoRanks(), {.lines = lines, .columns = 40}));
    EXPECT_LE(drawn.size(), lines);
    for (const std::string& line : drawn) EXPECT_LE(line.size(), 40u);
  }
}

TEST(TopScreen, OfAThousandNodesShowsTheSlowestFirst) {
  TopFigures figures;
  for (int node = 0; node < 1000; ++node) {
    status::FiguresOfNode of;
    for (int i = 0; i < 8; ++i) {
      of.ranks.push_back({.rank = 8 * node + i,
                          .pid = 10 + i,
                          .phase = "forward",
                          .step = node == 700 && i == 3 ? 480 : 500,
                          .gpus = {i}});
      of.gpus.push_back({.index = i,
                         .pci_address = "0000:3b:00.0",
                         .name = "NVIDIA H100 80GB HBM3",
                         .busy_percent = 99,
                         .memory_used_mib = 70000,
                         .memory_mib = 81559,
                         .power_watts = 650,
                         .celsius = 70,
                         .sm_mhz = 1980});
    }
    // What each of so many nodes may answer.
    const size_t room = kInquiryAnswerBytesMax / 1000;
    status::FitFigures(room, of);
    figures.parts.push_back(Node(absl::StrCat("node", node), 8 * node, of));
    ASSERT_EQ(of.ranks.size(), 8u);
    ASSERT_EQ(of.gpus.size(), 8u);
    ASSERT_LE(figures.parts.back().body.size(), room);
  }
  const auto lines = Lines(TopScreen(figures, {}));
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_THAT(lines[1], HasSubstr("1000 nodes, 8000 ranks"));
  EXPECT_THAT(lines[3], AllOf(StartsWith(" 5603 node700"), HasSubstr("  480    20 ")));
}

TEST(TopScreen, NamesWhoDoesNotAnswer) {
  TopFigures figures = TwoRanks();
  figures.parts.push_back({.node = "node2", .status = absl::UnavailableError("its agent is gone")});
  figures.parts.push_back({.node = "node3", .body = "no figures"});
  EXPECT_THAT(TopScreen(figures, {}), AllOf(HasSubstr("node2: its agent is gone\n"),
                                            HasSubstr("node3: the figures is not JSON\n")));
}

TEST(TopScreen, LetsNoMemberSpeakToTheTerminal) {
  TopFigures figures = TwoRanks();
  figures.parts[0].node = "\x1b[2J";
  EXPECT_THAT(TopScreen(figures, {}), Not(HasSubstr("\x1b")));
}

TEST(TopScreen, ShowsTheFilterThatIsBeingTyped) {
  EXPECT_EQ(Lines(TopScreen(TwoRanks(), {.typing = "filter: no"})).back(), "filter: no");
}

}  // namespace
}  // namespace muster::launcher
