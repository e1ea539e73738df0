// Decides what a rank starts next, from its program and from what has happened.
//
// Computing goes in the program's order, one action at a time. Collectives and transfers are
// started in the program's order too, each as soon as what it waits for is there: while a backward
// pass still runs, if it waits for gradients. So every rank starts the same sequence, whatever the
// order of gradients on each. What gives memory back is done as soon as it may be.
//
// A pass that has uses (plan::Entry) says when it comes to one, and goes on when UseHoldUp() has
// nothing left to wait for.
//
// Pure: the same events give the same starts. Thread-compatible: the engine calls it on the thread
// of Engine::Step.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// The backward pass that runs has written the gradient of a parameter for the last time.
struct GradientReady {
  int parameter = 0;
};
struct Done {
  int action = 0;
};
// The pass that runs comes to its next use that is of this unit (Arrival::kNext).
struct UnitEntered {
  int unit = 0;
};
// The pass that runs comes to its next sum, which is of so many bytes (ExpectsSum).
struct SumEntered {};
using ExecutorEvent = std::variant<GradientReady, Done, UnitEntered, SumEntered>;

// Actions that start in the program's order, each when it may.
class ActionOrder {
 public:
  void Add(int action) { actions_.push_back(action); }
  void Rewind() { next_ = oldest_ = 0; }
  void Pass() { ++next_; }

  // The first that has not started; plan::kNone: all have.
  int next() const { return next_ < actions_.size() ? actions_[next_] : plan::kNone; }
  // The first that has started and is not done; plan::kNone: none is under way. What `is_done` is
  // told of is done until Rewind, and is not asked again.
  template <typename IsDone>
  int FirstUnderWay(IsDone is_done) {
    while (oldest_ < next_ && is_done(actions_[oldest_])) ++oldest_;
    return oldest_ < next_ ? actions_[oldest_] : plan::kNone;
  }

 private:
  std::vector<int> actions_;
  size_t next_ = 0;
  size_t oldest_ = 0;  // those before it are done
};

class ExecutorCore {
 public:
  // `program` is proven (plan/prove_program.h) and outlives this.
  explicit ExecutorCore(const plan::Program& program);

  // A step begins; whatever was under way is forgotten. Returns the actions to start, in this
  // order; valid until the next call.
  absl::Span<const int> Begin();

  // Returns the actions to start now, in this order; valid until the next call. Each action is done
  // once, after it was started; those of Lane::kMemory are done by being started.
  absl::Span<const int> Step(const ExecutorEvent& event);

  // While nothing can be computed: the action under way that holds up the next one, to be waited
  // for.
  int HoldUp();

  // What it means that the pass that runs comes to a unit. Uses that a pass leaves out are passed
  // over.
  enum class Arrival : uint8_t {
    kSame,     // it is there already, or the program does not look at uses
    kNext,     // Step(UnitEntered)
    kUnknown,  // the program has no such use from here on
  };
  Arrival WhatIs(int unit) const;
  // Whether the next thing that a pass runs into, but for uses that it leaves out, is a sum of so
  // many bytes.
  bool ExpectsSum(int64_t bytes) const;
  // The use or the sum that the pass has come to.
  const plan::Entry& use() const { return pass().entries[use_]; }
  // The action under way that holds it up; kNone: it may go on; kNever: what it waits for begins
  // only when the pass is further, as gradients come in another order than was found out.
  static constexpr int kNever = -2;
  int UseHoldUp();

  // Whether no pass runs that is of another stage.
  bool IsOfPass(int stage) const { return pass_ == plan::kNone || pass().of.stage == stage; }
  // No forward or backward pass runs.
  bool is_between_passes() const { return pass_ == plan::kNone; }
  // Every action is done.
  bool IsFinished() const { return num_done_ == static_cast<int>(program_.actions.size()); }

 private:
  enum class State : uint8_t { kWaiting, kStarted, kDone };

  // The one that runs.
  const plan::Pass& pass() const { return program_.actions[pass_].As<plan::Pass>(); }
  void Apply(const GradientReady& event);
  void Apply(const Done& event);
  void Apply(const UnitEntered& event);
  void Apply(const SumEntered& event);
  // The number of the use before the next sum, or of that; -1 if there is none.
  int FindUse(int unit) const;
  int FindSum() const;
  // That of the use which the pass is in, where it may have come to sums since; plan::kNone: none.
  int UnitAtHand() const;
  bool IsReady(int action) const;
  // Starts the next action of `order`, if it may start.
  bool StartNext(ActionOrder& order);
  absl::Span<const int> StartWhatMay();
  void StartWhatNeedNotCompute();
  // plan::kNone: nothing is under way.
  int HoldUpOfLaunches();
  // The first action under way that `action` waits for; kNone.
  int HoldUpOf(int action) const;

  // Constant after construction.
  const plan::Program& program_;
  std::vector<std::vector<int>> waiting_for_;  // by parameter: actions that wait for its gradient
  std::vector<std::vector<int>> after_pass_;   // by action: those that wait for gradients of it

  std::vector<State> states_;  // by action
  std::vector<int> missing_;   // by action: gradients that are not there yet
  std::vector<int> came_to_;   // by action: of a pass the use that it has come to; -1: not begun
  int pass_ = plan::kNone;     // the one that runs
  int use_ = -1;               // that it is in, or the sum
  bool has_uses_ = false;      // the pass, beside sums
  ActionOrder computing_;      // of the compute lane
  ActionOrder launching_;      // what travels
  ActionOrder freeing_;        // of Lane::kMemory
  bool is_computing_ = false;
  int num_done_ = 0;
  std::vector<int> started_;
};

}  // namespace muster::engine
