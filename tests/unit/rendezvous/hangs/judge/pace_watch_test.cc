#include "rendezvous/hangs/judge/pace_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;

// Three nodes of two ranks each.
class PaceWatchTest : public ::testing::Test {
 protected:
  PaceWatchTest() { watch_.StartRound(nodes_); }
  // Rank 2 takes half as long again.
  std::optional<Stragglers::Change> Window(int node, int64_t window) {
    const absl::Duration usual = absl::Milliseconds(100);
    return watch_.OnPaces(nodes_[node], {window, {node == 1 ? 1.5 * usual : usual, usual}});
  }

  void Note(const std::optional<Stragglers::Change>& change) {
    if (change) slow_.push_back(change->slow);
  }

  const std::vector<WatchedNode> nodes_ = {{.first_rank = 0, .num_ranks = 2},
                                           {.first_rank = 2, .num_ranks = 2},
                                           {.first_rank = 4, .num_ranks = 2}};
  PaceWatch watch_;
  std::vector<std::vector<int>> slow_;
};

TEST_F(PaceWatchTest, NamesARankOnceThatAllNodesHaveSeenSlow) {
  for (int window = 1; window <= 6; ++window) {
    for (const int node : {0, 1, 2}) Note(Window(node, window));
  }
  EXPECT_THAT(slow_, ElementsAre(ElementsAre(2)));
}

TEST_F(PaceWatchTest, WaitsForNoNodeThatMeasuresNothing) {
  Window(2, 1);
  Window(2, 0);
  for (int window = 1; window <= 6; ++window) {
    for (const int node : {0, 1}) Note(Window(node, window));
  }
  EXPECT_THAT(slow_, ElementsAre(ElementsAre(2)));
}

TEST_F(PaceWatchTest, ComparesNothingBeforeAllHaveANewWindow) {
  for (int window = 1; window <= 9; ++window) {
    Window(0, 1);
    EXPECT_FALSE(Window(1, window));
    if (window == 1) Window(2, 1);
    EXPECT_FALSE(Window(1, window)) << "the same again";
  }
}

}  // namespace
}  // namespace muster::hangs
