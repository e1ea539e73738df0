#include "worker_runtime/plan/moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/data_parallel_presets.h"
#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::plan {
namespace {

using ::muster::testing::DataParallelPresets;

// The definition itself: what each moment waits for, and what these wait for.
class Closure {
 public:
  explicit Closure(const Program& program, const Moments& moments) {
    int last_compute = kNone;
    const auto last = [&](int action) { return moments.Last(action); };
    waits_.resize(last(static_cast<int>(program.actions.size()) - 1) + 1);
    for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
      const Action& action = program.actions[i];
      std::vector<size_t>& first = waits_[moments.First(i)];
      for (const int other : action.after) first.push_back(last(other));
      if (BackwardOf(action) != kNone) first.push_back(last(BackwardOf(action)));
      if (action.at.pass != kNone) first.push_back(moments.First(action.at.pass) + action.at.entry);
      if (LaneOf(action.kind()) == Lane::kCompute) {
        if (last_compute != kNone) first.push_back(last(last_compute));
        last_compute = i;
      }
      for (size_t e = 0; e < EntriesOf(action).size(); ++e) {
        const Entry& entry = EntriesOf(action)[e];
        std::vector<size_t>& use = waits_[moments.Use(i, e)];
        use.push_back(moments.Use(i, e) - 1);
        for (const int other : entry.unshards) use.push_back(last(other));
        for (const int other : entry.waits) use.push_back(last(other));
      }
    }
  }

  std::set<size_t> AllBefore(size_t moment) const {
    std::set<size_t> all;
    std::vector<size_t> open = {moment};
    while (!open.empty()) {
      const size_t next = open.back();
      open.pop_back();
      for (const size_t other : waits_[next]) {
        if (all.insert(other).second) open.push_back(other);
      }
    }
    return all;
  }
  size_t size() const { return waits_.size(); }

 private:
  std::vector<std::vector<size_t>> waits_;
};

TEST(Moments, KnowWhatWaitsForWhatByAnyWay) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const Places places : {Places{.replicas = 4}, Places{.stages = 3, .replicas = 4}}) {
      JobOptions options = {
          .accumulation = 2, .bucket_blocks = 1, .preset = preset, .reduce_dtype = DType::kBf16};
      if (PlanPreset(preset)->shard_ranks != 0) options.shard_ranks = 2;
      const Program program = Job(places, options).ProgramOf(0);
      Moments moments(program);
      ASSERT_TRUE(moments.Order());
      const Closure closure(program, moments);
      for (size_t later = 0; later < closure.size(); ++later) {
        const std::set<size_t> before = closure.AllBefore(later);
        for (size_t earlier = 0; earlier < closure.size(); ++earlier) {
          ASSERT_EQ(moments.IsBefore(earlier, later), before.contains(earlier))
              << preset << ": " << earlier << " before " << later;
          if (before.contains(earlier)) {
            ASSERT_LT(moments.PlaceOf(earlier), moments.PlaceOf(later));
          }
        }
      }
    }
  }
}

TEST(Moments, HaveNoOrderWhereOneWaitsForItself) {
  Program program = Job({.replicas = 2}, {.preset = "zero-3"}).ProgramOf(0);
  for (Action& action : program.actions) {
    auto* const pass = std::get_if<Pass>(&action.body);
    if (pass == nullptr) continue;
    pass->entries[0].waits = {static_cast<int>(program.actions.size()) - 1};  // the last UPDATE
    break;
  }
  Moments moments(program);
  EXPECT_FALSE(moments.Order());
}

}  // namespace
}  // namespace muster::plan
