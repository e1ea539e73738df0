// Whether the programs of all ranks can run together, and what they take.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/program.h"

namespace muster::plan {

// What one rank's step takes.
struct StepFigures {
  ArenaBytes peak = {};                            // bytes of each arena
  std::array<int64_t, kNumActionKinds> sent = {};  // bytes that leave the rank, by kind of action

  int64_t sent_total() const;
};

// The figures of one program, by itself.
StepFigures FiguresOf(const Program& program);

// Shows of one program that
//
//   M1  every action waits for earlier ones only, and nothing for itself;
//   M2  of two actions, or uses of units, that touch the same memory, of which one writes it, one
//       waits for the other;
//   M3  what a pass uses has been gathered and not been given up yet, what is gathered is given up
//       once, and all of it lies within its arena.
//
// Errors: kFailedPrecondition: names the rank, the action and what does not hold.
absl::Status ProveMemory(const Program& program);

// Walks the programs of all ranks together, from start to end, and shows that
//
//   P1  every action is done in the end: nobody waits for what never comes;
//   P2  what meets agrees: the k-th collective of a group, and the k-th transfer from one rank to
//       another, are the same operation of the same size on both sides;
//   P3  there is one order of collectives over all groups that every rank launches in, so that
//       devices which run one at a time do not wait for each other in a ring;
//   P4  each block of the gradient counts once in the norm.
//
// Errors: as ProveMemory.
absl::Status ProvePrograms(const JobPrograms& job);

// M1 of actions alone, which the others build on.
absl::Status CheckReferences(const Program& program);

// The error of programs that do not hold.
template <typename... Text>
absl::Status CannotRun(const Text&... text) {
  return absl::FailedPreconditionError(absl::StrCat("this program cannot run: ", text...));
}

// "rank 3, action 12 (NORM)"
std::string NameOfAction(const Program& program, size_t action);

}  // namespace muster::plan
