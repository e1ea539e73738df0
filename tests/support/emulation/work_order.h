// Pieces of work that wait for others, run in an order that is drawn: any order in which each comes
// after those that it waits for is possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/emulation/draws.h"

namespace muster::testing {

// Threads: thread-compatible.
class WorkOrder {
 public:
  struct Item {
    std::function<std::string()> run;          // empty, or what went wrong
    int lane = 0;                              // lanes are preferred or held back as wholes
    int waits = 0;                             // for so many that have not run
    std::vector<std::shared_ptr<Item>> later;  // which wait for this one
    bool done = false;
    std::function<bool()> may_run;  // null: as soon as nothing is left to wait for
  };
  using Handle = std::shared_ptr<Item>;

  // `most_at_once`: see DrawSome.
  WorkOrder(uint64_t seed, size_t most_at_once) : draws_(seed), most_at_once_(most_at_once) {}

  // `may_run`: for work that waits for something outside, as for other devices; it is asked again
  // and again.
  Handle Add(std::function<std::string()> run, int lane, const std::vector<Handle>& after,
             std::function<bool()> may_run = nullptr);
  // Runs what is drawn until all of `wanted` have run, or nothing more may run. Empty, or the first
  // that went wrong.
  std::string RunUntil(const std::vector<Handle>& wanted);
  static constexpr size_t kAll = SIZE_MAX;
  // Runs so many, or what there is and may run.
  std::string Run(size_t most);
  // How many happen to run while somebody asks: fewer than most_at_once.
  size_t DrawSome();
  bool is_idle() const { return ready_.empty(); }
  // Whether anything may run now.
  bool MayRun() const;

 private:
  // False: nothing may run.
  bool RunOne(std::string& failure);
  uint64_t Preference(int lane) const;

  Draws draws_;
  const size_t most_at_once_;
  uint64_t mood_ = 0;  // which lanes are preferred now
  bool is_steady_ = false;
  int64_t num_asked_ = 0;
  std::vector<Handle> ready_;
};

}  // namespace muster::testing
