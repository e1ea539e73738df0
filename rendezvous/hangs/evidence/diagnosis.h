// Why ranks wait: follows who waits for whom through all groups to where the waiting ends.
//
// A diagnosis says how things stand, not whether that is wrong: a rank that loads its data for a
// minute and one that has hung give the same one. Whether time has made it a hang is
// HangJudge's (hang_judge.h).
//
// Pure. Cost: linear in operations and members of groups that wait; 16 384 ranks in 8 groups each
// take well below a second (tests/bench/verdict_bench.cc).
// Source: differs from PyTorch's flight recorder analyser (torch/distributed/flight_recorder) in
//         that no rank is trusted, waiting is followed from group to group, and a missing record is
//         nobody's guilt.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/hangs/evidence/evidence.h"

namespace muster::hangs {

enum class Finding {
  kNobodyWaits,
  kNotCalled,   // a rank has not called what others wait for, and itself waits for nobody
  kMismatch,    // ranks have called different things as the same operation
  kCircle,      // ranks wait for each other: groups used in different orders
  kEnded,       // a rank that others wait for has ended
  kStopped,     // it is stopped by a signal
  kNoReply,     // its records cannot be read
  kFault,       // its device or network has a known fault
  kInside,      // all have called it, and it does not end
  kSilent,      // nobody is seen to wait, and all have marked what they do: who is furthest behind
  kOutOfSight,  // the way leads to ranks of whom nothing is known
};
std::string ToString(Finding finding);
// What the program has called, or that it has ended, is to blame: it would do the same elsewhere.
bool IsOfTheProgram(Finding finding);

// What has to be mended, as a class (cause.h). Values are sent between nodes: new ones go to the
// end.
enum class Cause {
  kUnknown,
  kNeverArrived,
  kOtherOperation,
  kOtherSize,
  kReversedOrder,  // of groups
  kDeadPeer,
  kSlowLink,
  kDataLoader,
  kLock,
  kStopped,
  kMemory,
  kDisk,
};

struct Diagnosis {
  Finding finding = Finding::kNobodyWaits;
  std::vector<int> culprits;  // ranks at which the waiting ends, sorted; see `finding`
  std::vector<int> waiting;   // ranks that wait for them, directly or not; sorted
  // The ranks at fault and what they did, in words, where the finding alone does not tell; else
  // empty.
  std::string words;
  // What is waited for where the waiting ends; none with kNobodyWaits.
  std::string group;
  std::optional<Operation> operation;
  bool is_direct = true;          // else `waiting` reach the culprits through other groups
  std::vector<std::string> path;  // of the first who waits, one step each, in words
  std::vector<std::string> spoke_for_it;
  double confidence = 0;  // that ending the culprits is right, once it is certain to be a hang
  bool can_heal = true;   // by waiting alone
  // The culprits only do nothing while others wait for somebody: no operation of a group, which
  // others have called and they have not, leads to them. It is noticed, never judged.
  bool is_inferred = false;
  bool is_busy = false;  // all culprits compute, read or write: they may only take long
  bool loop = false;     // all culprits compute in one function
  Cause cause = Cause::kUnknown;

  // "rank 3 has not called all_reduce #17 (group dp, 4096 bytes f32); ranks 0-2 wait". Begins with
  // who is at fault, where somebody is.
  std::string Describe() const;
};

Diagnosis Diagnose(const Evidence& evidence);

std::string NameOf(const Operation& operation);
// "all_reduce #17 (group dp, 4096 bytes f32)".
std::string InWords(const Operation& operation, const std::string& group);

}  // namespace muster::hangs
