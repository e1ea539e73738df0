#include "worker_runtime/plan/like_ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "worker_runtime/plan/prove_program.h"

namespace muster::plan {
namespace {

std::vector<int> PlacesOfTransfers(const Program& program) {
  std::set<int> places;
  for (const Action& action : program.actions) {
    if (const Transfer* const transfer = action.If<Transfer>()) places.insert(transfer->place);
  }
  return {places.begin(), places.end()};
}

// The number of `key` in the order in which keys came.
template <typename Key>
int NumberOf(std::map<Key, int>& numbers, Key key) {
  return numbers.try_emplace(std::move(key), static_cast<int>(numbers.size())).first->second;
}

}  // namespace

LikeRanks::LikeRanks(const JobPrograms& job) : job_(job), class_of_rank_(job.kind_of_rank) {
  for (const Program& program : job.programs) places_.push_back(PlacesOfTransfers(program));
  for (std::vector<int> before; before != class_of_rank_;) {
    before = class_of_rank_;
    Refine();
  }
}

std::vector<std::vector<int>> LikeRanks::MeetingsOfRanks() {
  const auto num_ranks = static_cast<int>(class_of_rank_.size());
  meetings_.clear();
  std::vector<std::vector<int>> meetings(num_ranks);
  std::map<Dimensions, std::vector<int>> meeting_of;  // by the first rank of a group
  std::map<std::pair<Dimensions, std::vector<int>>, int> known;
  const auto meet = [&](Dimensions along) {
    const Mesh& mesh = job_.programs.front().mesh;
    std::vector<std::vector<int>> members(num_ranks);  // classes, by the first rank of the group
    for (int rank = 0; rank < num_ranks; ++rank) {
      members[mesh.FirstOf(rank, along)].push_back(class_of_rank_[rank]);
    }
    std::vector<int>& numbers = meeting_of[along];
    for (std::vector<int>& classes : members) {
      std::sort(classes.begin(), classes.end());
      numbers.push_back(classes.empty() ? kNone : NumberOf(known, {along, classes}));
      if (numbers.back() != static_cast<int>(meetings_.size())) continue;
      classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
      meetings_.push_back({along, std::move(classes)});
    }
  };
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Program& program = ProgramOf(rank);
    for (const Dimensions along : program.groups) {
      if (!meeting_of.contains(along)) meet(along);
      meetings[rank].push_back(meeting_of[along][program.mesh.FirstOf(rank, along)]);
    }
  }
  return meetings;
}

void LikeRanks::Refine() {
  const std::vector<std::vector<int>> meetings = MeetingsOfRanks();
  classes_.clear();
  std::vector<int> refined;
  std::map<std::vector<int>, int> known;
  for (int rank = 0; rank < static_cast<int>(class_of_rank_.size()); ++rank) {
    const Program& program = ProgramOf(rank);
    std::vector<int> key = {class_of_rank_[rank]};
    key.insert(key.end(), meetings[rank].begin(), meetings[rank].end());
    for (const int place : places_[job_.kind_of_rank[rank]]) {
      key.push_back(class_of_rank_[program.mesh.Moved(rank, Dimension::kPipeline, place)]);
    }
    refined.push_back(NumberOf(known, std::move(key)));
    if (refined.back() == size()) classes_.push_back({rank, &program, meetings[rank]});
  }
  class_of_rank_ = std::move(refined);
}

int LikeRanks::PeerOf(int of_class, const Transfer& transfer) const {
  const Class& own = classes_[of_class];
  return class_of_rank_[own.program->mesh.Moved(own.rank, Dimension::kPipeline, transfer.place)];
}

std::string LikeRanks::NameOf(int of_class, size_t action) const {
  Program named = *classes_[of_class].program;
  named.rank = classes_[of_class].rank;
  return NameOfAction(named, action);
}

}  // namespace muster::plan
