#include "worker_runtime/engine/state_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "tests/support/status_matchers.h"

namespace muster::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

StateSources Chosen(const std::vector<StatePart>& parts, int64_t num_elements) {
  const auto sources = ChooseSources(parts, num_elements);
  EXPECT_THAT(sources, testing::IsOk());
  return sources.value_or(StateSources());
}

TEST(StateSources, AreTheLowestRankAloneWhereEveryRankHasAll) {
  const StateSources sources = Chosen({{}, {4, {{0, 10}}}, {4, {{0, 10}}}}, 10);
  EXPECT_EQ(sources.step, 4);
  EXPECT_THAT(sources.ranges, ElementsAre(SourceRange{1, {0, 10}}));
}

TEST(StateSources, ArePutTogetherFromShardsOfWhichAReplicaIsLost) {
  // There were two groups of two ranks; rank 1 is new.
  const StateSources sources =
      Chosen({{7, {{6, 8}, {0, 3}}}, {}, {7, {{0, 3}, {6, 8}}}, {7, {{3, 6}, {8, 10}}}}, 10);
  EXPECT_THAT(sources.ranges, ElementsAre(SourceRange{0, {0, 3}}, SourceRange{3, {3, 6}},
                                          SourceRange{0, {6, 8}}, SourceRange{3, {8, 10}}));
  EXPECT_THAT(sources.Ranks(), ElementsAre(0, 3));
}

TEST(StateSources, AreOfTheNewestStepThatIsWhole) {
  EXPECT_EQ(Chosen({{7, {{0, 5}}}, {6, {{0, 5}}}, {6, {{5, 10}}}}, 10).step, 6);
  EXPECT_EQ(Chosen({{7, {{0, 5}}}, {6, {{0, 10}}}, {7, {{5, 10}}}}, 10).step, 7);
  EXPECT_EQ(Chosen({{0, {{0, 10}}}, {}}, 10).step, 0);
}

TEST(StateSources, AreOfOneStepAlone) {
  EXPECT_THAT(ChooseSources({{{7, {{0, 5}}}, {6, {{5, 10}}}}}, 10).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("2 ranks have no whole state together: after step 7 they lack 5 "
                                 "of 10 elements")));
}

TEST(StateSources, AreNoneWhereNoRankHasAnything) {
  EXPECT_THAT(ChooseSources({{{}, {}, {}}}, 10).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none of 3 ranks")));
}

TEST(StateSources, OfARangeAreThoseThatOverlapIt) {
  const StateSources sources = Chosen({{1, {{0, 4}}}, {1, {{4, 8}}}, {1, {{8, 9}}}}, 9);
  EXPECT_THAT(sources.Of({0, 4}), ElementsAre(SourceRange{0, {0, 4}}));
  EXPECT_THAT(sources.Of({3, 5}), ElementsAre(SourceRange{0, {3, 4}}, SourceRange{1, {4, 5}}));
  EXPECT_THAT(sources.Of({4, 9}), ElementsAre(SourceRange{1, {4, 8}}, SourceRange{2, {8, 9}}));
  EXPECT_THAT(sources.Of({4, 4}), IsEmpty());
}

// Element by element.
std::optional<int64_t> NewestWholeStep(const std::vector<StatePart>& parts, int64_t num_elements) {
  for (int64_t step = 3; step >= 0; --step) {
    std::vector<bool> there(num_elements, false);
    for (const StatePart& part : parts) {
      if (part.step != step) continue;
      for (const ElementRange& range : part.ranges) {
        std::fill(there.begin() + range.begin, there.begin() + range.end, true);
      }
    }
    if (std::count(there.begin(), there.end(), true) == num_elements) return step;
  }
  return std::nullopt;
}

TEST(StateSources, GiveEachElementOnceFromARankThatHasIt) {
  constexpr int64_t kElements = 24;
  std::mt19937 random(3);
  const auto below = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  };
  int found = 0;
  for (int round = 0; round < 10000; ++round) {
    std::vector<StatePart> parts(1 + below(6));
    for (StatePart& part : parts) {
      part.step = below(4) - 1;
      for (int64_t n = part.step == kNoState ? 0 : below(6); n > 0; --n) {
        const int64_t begin = below(kElements);
        part.ranges.push_back({begin, begin + 1 + below(kElements - begin)});
      }
    }
    const auto sources = ChooseSources(parts, kElements);
    const std::optional<int64_t> step = NewestWholeStep(parts, kElements);
    ASSERT_EQ(sources.ok(), step.has_value());
    if (!sources.ok()) continue;
    ++found;
    ASSERT_EQ(sources->step, *step);
    int64_t end = 0;
    for (const SourceRange& source : sources->ranges) {
      ASSERT_EQ(source.range.begin, end);
      ASSERT_GT(source.range.end, end);
      end = source.range.end;
      const StatePart& part = parts[source.rank];
      ASSERT_EQ(part.step, *step);
      ASSERT_TRUE(std::any_of(part.ranges.begin(), part.ranges.end(), [&](const ElementRange& has) {
        return Overlap(has, source.range) == source.range;
      }));
    }
    ASSERT_EQ(end, kElements);
  }
  EXPECT_GT(found, 400);
}

TEST(Transfers, AreOwnElementsFirstAndTheRestFromThoseThatTheSourcesName) {
  const std::vector<StatePart> parts = {{7, {{0, 6}}}, {7, {{4, 10}}}, {}};
  const StateSources sources = Chosen(parts, 10);
  EXPECT_THAT(TransfersTo({{{0, 10}}, {{0, 10}}, {{8, 10}, {2, 3}}}, parts, sources),
              ElementsAre(ElementTransfer{0, 0, {0, 6}}, ElementTransfer{0, 1, {0, 4}},
                          ElementTransfer{0, 2, {2, 3}}, ElementTransfer{1, 1, {4, 10}},
                          ElementTransfer{1, 0, {6, 10}}, ElementTransfer{1, 2, {8, 10}}));
}

TEST(Transfers, TakeNothingOfARankWhoseStateIsOfAnotherStep) {
  const std::vector<StatePart> parts = {{6, {{0, 4}}}, {7, {{0, 4}}}};
  EXPECT_THAT(TransfersTo({{{0, 4}}, {{0, 4}}}, parts, Chosen(parts, 4)),
              ElementsAre(ElementTransfer{1, 0, {0, 4}}, ElementTransfer{1, 1, {0, 4}}));
}

bool IsIn(ElementRange range, const std::vector<ElementRange>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const ElementRange& other) { return Overlap(range, other) == range; });
}

TEST(Transfers, GiveEachRankWhatItWantsOnceFromARangeThatItsGiverHas) {
  constexpr int64_t kElements = 60;
  std::mt19937 random(7);
  const auto ranges = [&] {
    std::vector<ElementRange> drawn;
    for (int64_t at = random() % 5; at < kElements;) {
      const int64_t end = std::min<int64_t>(kElements, at + 1 + random() % 9);
      drawn.push_back({at, end});
      at = end + random() % 4;
    }
    std::shuffle(drawn.begin(), drawn.end(), random);
    return drawn;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<StatePart> parts = {{9, {{30, kElements}, {0, 30}}}};
    std::vector<std::vector<ElementRange>> wanted = {ranges()};
    for (int rank = 1; rank < 5; ++rank) {
      parts.push_back({static_cast<int64_t>(8 + random() % 2), ranges()});
      wanted.push_back(ranges());
    }
    std::shuffle(parts.begin(), parts.end(), random);
    const StateSources sources = Chosen(parts, kElements);
    std::vector<std::vector<int>> got(wanted.size(), std::vector<int>(kElements));
    for (const auto& [from, to, range] : TransfersTo(wanted, parts, sources)) {
      EXPECT_GT(range.size(), 0);
      EXPECT_EQ(parts[from].step, sources.step);
      EXPECT_TRUE(IsIn(range, parts[from].ranges));
      EXPECT_TRUE(IsIn(range, wanted[to]));
      for (int64_t i = range.begin; i < range.end; ++i) {
        ++got[to][i];
        const bool has_it = parts[to].step == sources.step && IsIn({i, i + 1}, parts[to].ranges);
        EXPECT_EQ(has_it, from == to);
      }
    }
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      for (int64_t i = 0; i < kElements; ++i) {
        EXPECT_EQ(got[rank][i], IsIn({i, i + 1}, wanted[rank]) ? 1 : 0);
      }
    }
  }
}

}  // namespace
}  // namespace muster::engine
