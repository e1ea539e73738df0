// What the ranks of a job called last, where one of them has aborted: Gloo ends the rank that
// receives another size than it expects, which need not be the one at fault, and those who know
// better forget it as they end.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/membership.h"
#include "rendezvous/hangs/evidence/evidence.h"

namespace muster::hangs {

// One collective that a rank has called, or several.
struct Call {
  std::string group = {};  // its name, the same on all ranks; empty in a report
  std::string label;       // of the group, for people
  Operation operation;
  std::vector<int> ranks = {};  // in a report: that have called it; sorted
  absl::Duration age;           // the longest of theirs
};

// A rank's calls beyond it are left out, the oldest first.
inline constexpr size_t kLastCallsMax = 16;

struct RankCalls {
  int rank = 0;
  // How long ago it was read, where the rank could not be asked any more.
  absl::Duration age;
  std::vector<Call> calls;  // of all groups, oldest first
};

// Sides and last calls beyond it are left out, those of the fewest ranks first.
inline constexpr size_t kSameCallsMax = 16;

struct AbortReport {
  std::vector<int> aborted;  // sorted
  // What each rank called last; of those that could not be asked any more apart.
  std::vector<Call> last;
  // What ranks have called as the same operation of one group, which no wait can heal: two and
  // more, or nothing.
  std::vector<Call> differences;
  std::vector<int> unknown;  // no call of theirs is known; sorted
};

// How far a node is with asking what ranks called last.
struct LastCallsState {
  bool asks_workers = false;  // its own: none of them is signalled before they have answered
  bool awaits_judge = false;  // what those of all nodes called: no failure is told before that
  absl::Duration within;      // for so long at most, from now on
  AbortReport said;           // what is known of all, as far as it has words
};

// Compares ranks 0 to `world_size` - 1; `ranks` has each of them once at most. Of several
// differences that of the most ranks is taken, and in its group the first.
AbortReport CompareLastCalls(std::vector<int> aborted, int world_size,
                             const std::vector<RankCalls>& ranks);

// Whose call has made ranks abort.
struct AbortBlame {
  std::vector<int> at_fault;  // sorted; empty: that cannot be told
  std::string words;          // who called what, beginning with them; empty: nothing differs
};

// The fewer ranks are at fault. Gloo aborts a rank that receives more than it expects: so of two
// sizes a rank that has aborted, and whose call is not known, has called the smaller one; and where
// all others agree, it has called less than they. The latter counts only if it is known that Gloo
// has ended it: `is_of_size`.
AbortBlame FindBlame(const AbortReport& report, bool is_of_size);

// Whether the last words of a process say that Gloo has ended it, because it has received more than
// it expects.
bool IsOfSize(absl::string_view last_output);

// Nothing where no call is known.
//
// "rank 0 has aborted. Last calls: rank 1 called all_reduce #6 (group default_pg, 8192 bytes f32);
// rank 0 had called all_reduce #5 (group default_pg, 4096 bytes f32) when asked 1.3s earlier. …".
// Begins with who is at fault, where that is known.
std::string InWords(const AbortReport& report);

// Whose call has ended the rank of `failure`, if it is one that has aborted: another's becomes its
// `ended_by`; where Gloo has ended it for a size and nobody knows whose, its message says so.
void TellWhoEnded(const AbortReport& report, WorkerFailure& failure);

}  // namespace muster::hangs
