// Ranks that behave alike, so that what is shown of one of them is shown of all.
//
// Ranks are of one class if they have one program, if in each of their groups there are as many
// ranks of each class, and if the other ends of their transfers are of one class too. What they
// wait for is then there for all of them in the same turn. A job of thousands of ranks has few
// classes: one per place of a pipeline, times the ways in which ordered sums are added, times the
// sizes that shards have where they are replicated.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/program.h"

namespace muster::plan {

class LikeRanks {
 public:
  // Groups that lie along the same dimensions and have as many ranks of each class.
  struct Meeting {
    Dimensions along = {};
    std::vector<int> classes;  // that take part, ascending
  };
  struct Class {
    int rank = 0;  // the first of it
    const Program* program = nullptr;
    std::vector<int> meetings;  // [groups]: a number of meetings()
  };

  // `job` outlives this.
  explicit LikeRanks(const JobPrograms& job);

  const std::vector<Class>& classes() const { return classes_; }
  const std::vector<Meeting>& meetings() const { return meetings_; }
  int size() const { return static_cast<int>(classes_.size()); }
  // The class at the other end of a transfer.
  int PeerOf(int of_class, const Transfer& transfer) const;
  // "rank 3, action 12 (NORM)", of the first rank of a class.
  std::string NameOf(int of_class, size_t action) const;

 private:
  const Program& ProgramOf(int rank) const { return job_.programs[job_.kind_of_rank[rank]]; }
  // Divides classes by whom their ranks meet.
  void Refine();
  // Fills meetings_. [rank][groups]
  std::vector<std::vector<int>> MeetingsOfRanks();

  const JobPrograms& job_;
  std::vector<int> class_of_rank_;
  std::vector<std::vector<int>> places_;  // [kind]: of the pipeline, that transfers go to
  std::vector<Meeting> meetings_;
  std::vector<Class> classes_;
};

}  // namespace muster::plan
