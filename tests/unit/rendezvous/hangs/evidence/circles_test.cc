// Which rank has closed a circle over a mesh, over PyTorch's recorder: programs of all-reduces in
// two or three dimensions run until nobody moves, and what they have called then is judged.
#include "rendezvous/hangs/evidence/circles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Sizes = std::vector<int>;  // of the dimensions, outermost first
using Calls = std::vector<int>;  // the dimensions whose groups are called, in this order

constexpr int kSteps = 12;
constexpr int kWrongStep = 3;

enum class Names { kDescribed, kNumbered };

class MeshJob {
 public:
  explicit MeshJob(Sizes sizes, Names names = Names::kDescribed) : sizes_(std::move(sizes)) {
    num_ranks_ = std::accumulate(sizes_.begin(), sizes_.end(), 1, std::multiplies<>());
    for (size_t d = 0; d < sizes_.size(); ++d) {
      std::map<int, std::vector<int>> by_place;  // by what its ranks have in common
      for (int r = 0; r < num_ranks_; ++r) by_place[r - PlaceIn(d, r) * StrideOf(d)].push_back(r);
      for (auto& [place, members] : by_place) {
        const std::string number = absl::StrCat(groups_.size() + 1);
        groups_.push_back(
            {names == Names::kDescribed ? absl::StrCat("mesh_d", d, " ", number) : number,
             std::move(members)});
      }
    }
    Calls usual;
    for (int step = 0; step < kSteps; ++step) {
      for (size_t d = 0; d < sizes_.size(); ++d) usual.push_back(static_cast<int>(d));
    }
    programs_.assign(num_ranks_, usual);
  }

  int num_ranks() const { return num_ranks_; }
  int num_dimensions() const { return static_cast<int>(sizes_.size()); }
  // The rank calls the group of dimension `is` for that of `should_be` once.
  MeshJob& CallsInPlaceOf(int rank, int should_be, int is) {
    programs_[rank][kWrongStep * num_dimensions() + should_be] = is;
    return *this;
  }
  // It has the order of dimensions `order` from some step on.
  MeshJob& Reorders(int rank, const Calls& order) {
    for (size_t k = kWrongStep * order.size(); k < programs_[rank].size(); ++k) {
      programs_[rank][k] = order[k % order.size()];
    }
    return *this;
  }
  MeshJob& Sleeps(int rank) {
    programs_[rank].resize(kWrongStep * num_dimensions());
    return *this;
  }

  Diagnosis Run() const {
    std::vector<size_t> done(num_ranks_, 0);
    // How many calls each rank has made in each group.
    std::vector<std::map<int, int>> issued(num_ranks_);
    const auto issue = [&](int r) {
      if (done[r] < programs_[r].size()) ++issued[r][GroupOf(r, programs_[r][done[r]])];
    };
    for (int r = 0; r < num_ranks_; ++r) issue(r);
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (int r = 0; r < num_ranks_; ++r) {
        if (done[r] == programs_[r].size()) continue;
        const int group = GroupOf(r, programs_[r][done[r]]);
        const int number = issued[r][group];
        const std::vector<int>& members = groups_[group].second;
        if (!std::all_of(members.begin(), members.end(),
                         [&](int member) { return issued[member][group] >= number; })) {
          continue;
        }
        ++done[r];
        issue(r);
        has_moved = true;
      }
    }
    return Diagnose(Tell(done, issued));
  }

 private:
  int StrideOf(size_t dimension) const {
    return std::accumulate(sizes_.begin() + static_cast<int>(dimension) + 1, sizes_.end(), 1,
                           std::multiplies<>());
  }
  int PlaceIn(size_t dimension, int rank) const {
    return rank / StrideOf(dimension) % sizes_[dimension];
  }
  int GroupOf(int rank, int dimension) const {
    int first = 0;
    for (int d = 0; d < dimension; ++d) first += num_ranks_ / sizes_[d];
    int at = first;
    while (std::find(groups_[at].second.begin(), groups_[at].second.end(), rank) ==
           groups_[at].second.end()) {
      ++at;
    }
    return at;
  }

  Evidence Tell(const std::vector<size_t>& done,
                const std::vector<std::map<int, int>>& issued) const {
    EvidenceBuilder job(num_ranks_);
    for (const auto& [name, members] : groups_) job.AddGroup(name, members);
    for (int r = 0; r < num_ranks_; ++r) {
      job.rank(r).tells_waits = false;
      const bool waits = done[r] < programs_[r].size();
      for (const auto& [group, number] : issued[r]) {
        const bool is_pending = waits && GroupOf(r, programs_[r][done[r]]) == group;
        for (int k = std::max(0, number - 3); k < number; ++k) {
          Operation op = AllReduce(k);
          op.chain = 0;
          job.Called(r, group, is_pending && k == number - 1 ? op : Done(op));
        }
      }
    }
    return job.Build();
  }

  const Sizes sizes_;
  int num_ranks_ = 0;
  std::vector<std::pair<std::string, std::vector<int>>> groups_;
  std::vector<Calls> programs_;
};

class Meshes : public ::testing::TestWithParam<std::pair<Sizes, Names>> {
 protected:
  static MeshJob Job() { return MeshJob(GetParam().first, GetParam().second); }
};

// Six stalls and more: of each row all but one wait, and the others in columns.
TEST_P(Meshes, NameTheRankThatCallsTheGroupOfAnotherDimension) {
  for (int wrong = 0; wrong < Job().num_ranks(); ++wrong) {
    for (int should_be = 0; should_be < Job().num_dimensions(); ++should_be) {
      for (int is = 0; is < Job().num_dimensions(); ++is) {
        if (is == should_be) continue;
        SCOPED_TRACE(absl::StrCat("rank ", wrong, ": ", is, " for ", should_be));
        const Diagnosis found = Job().CallsInPlaceOf(wrong, should_be, is).Run();
        EXPECT_EQ(found.finding, Finding::kCircle);
        EXPECT_THAT(found.culprits, ElementsAre(wrong)) << found.Describe();
        EXPECT_GE(found.confidence, 0.8);
        EXPECT_TRUE(found.can_heal) << "their recorder does not tell what they wait for";
        EXPECT_THAT(found.Describe(), Not(HasSubstr("opposite order")));
      }
    }
  }
}

TEST_P(Meshes, NameTheRankThatSleepsAndFindNoCircle) {
  for (int late = 0; late < Job().num_ranks(); ++late) {
    const Diagnosis found = Job().Sleeps(late).Run();
    EXPECT_EQ(found.finding, Finding::kNotCalled);
    EXPECT_THAT(found.culprits, ElementsAre(late)) << found.Describe();
  }
}

TEST_P(Meshes, NameNoInnocentWhereTwoRanksCallAnotherDimension) {
  for (int a = 0; a < Job().num_ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      const Diagnosis found = Job().CallsInPlaceOf(a, 0, 1).CallsInPlaceOf(b, 0, 1).Run();
      if (found.finding != Finding::kCircle || found.culprits.size() > 2) continue;
      EXPECT_THAT(found.culprits, IsSubsetOf({a, b})) << found.Describe();
    }
  }
}

TEST_P(Meshes, EndWhereAllAreRight) { EXPECT_EQ(Job().Run().finding, Finding::kNobodyWaits); }

INSTANTIATE_TEST_SUITE_P(OfAllShapes, Meshes,
                         ::testing::Values(std::pair(Sizes{2, 2}, Names::kDescribed),
                                           std::pair(Sizes{2, 2}, Names::kNumbered),
                                           std::pair(Sizes{2, 4}, Names::kDescribed),
                                           std::pair(Sizes{2, 4}, Names::kNumbered),
                                           std::pair(Sizes{4, 2}, Names::kDescribed),
                                           std::pair(Sizes{3, 3}, Names::kNumbered),
                                           std::pair(Sizes{2, 2, 2}, Names::kDescribed)));

TEST(CircleInAMesh, SaysWhatTheRankHasNotCalledAndWhereItWaits) {
  EXPECT_EQ(MeshJob({2, 4}).CallsInPlaceOf(0, 1, 0).Run().Describe(),
            "rank 0 has not called all_reduce #3 (group mesh_d1 5, 4096 bytes f32), in which ranks "
            "1-3 wait, and waits in all_reduce #5 (group mesh_d0 1, 4096 bytes f32): without it, "
            "no ranks wait in a circle; ranks 1-7 wait (rank 0 waits in all_reduce #5 (group "
            "mesh_d0 1, 4096 bytes f32) for rank 4, rank 4 waits in all_reduce #4 (group mesh_d1 "
            "6, 4096 bytes f32) for rank 5, rank 5 waits in all_reduce #4 (group mesh_d0 2, 4096 "
            "bytes f32) for rank 1, rank 1 waits in all_reduce #3 (group mesh_d1 5, 4096 bytes "
            "f32) for rank 0)");
}

// Half of the ranks call rows first, and half columns.
TEST(CircleInAMesh, NamesAllWhereTheHalvesDiffer) {
  const Diagnosis found = MeshJob({2, 2}).Reorders(0, {1, 0}).Reorders(3, {1, 0}).Run();
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_THAT(found.culprits, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(found.Describe(), HasSubstr("which of them is right cannot be told"));
}

// Ranks 1 and 2 wait for 0 in one group, 0 for 3 and 4 in another, and each of these for one of
// those: who has called its groups in the wrong order is rank 0 or two others.
TEST(CircleThroughOneRank, IsThatRanks) {
  EvidenceBuilder job(5);
  const int a = job.AddGroup("first", {0, 1, 2});
  const int b = job.AddGroup("second", {0, 3, 4});
  const int c = job.AddGroup("third", {1, 3});
  const int d = job.AddGroup("fourth", {2, 4});
  job.Waits(0, b, AllReduce(0));
  for (const int r : {1, 2}) job.Waits(r, a, AllReduce(0));
  job.Waits(3, c, AllReduce(0)).Waits(4, d, AllReduce(0));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_THAT(found.culprits, ElementsAre(0));
  EXPECT_LT(found.confidence, 0.8) << "two of the others may be wrong";
  EXPECT_THAT(found.Describe(),
              StartsWith("rank 0 has not called all_reduce #0 (group first, 4096 bytes f32), in "
                         "which ranks 1 and 2 wait, and waits in all_reduce #0 (group second, 4096 "
                         "bytes f32): without it, no ranks wait in a circle; ranks 1-4 wait"));
}

TEST(CircleInAMesh, IsNotJudgedWhereCountsOfCallsAreNotKnown) {
  EvidenceBuilder job(4);
  const int rows[] = {job.AddGroup("mesh_tp 1", {0, 1}), job.AddGroup("mesh_tp 2", {2, 3})};
  const int columns[] = {job.AddGroup("mesh_dp 3", {0, kUnknownRank}),
                         job.AddGroup("mesh_dp 4", {1, 3})};
  job.Waits(0, columns[0], AllReduce(8)).Waits(1, rows[0], AllReduce(7));
  job.Waits(2, rows[1], AllReduce(8)).Waits(3, columns[1], AllReduce(7));
  EXPECT_THAT(Diagnose(job.Build()).culprits, Not(SizeIs(1)));
}

}  // namespace
}  // namespace muster::hangs
