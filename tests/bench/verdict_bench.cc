// How long the verdict takes for a job of 16 384 ranks in eight groups each:
//
//   verdict_bench [ranks] [groups]
//
// One rank hangs; everybody else waits, half of them through another group.
#include <cstdio>
#include <cstdlib>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::hangs {
namespace {

Operation Waiting(int64_t sequence, bool awaited) {
  return {.kind = OperationKind::kAllReduce,
          .state = OperationState::kStarted,
          .sequence = sequence,
          .bytes = 1 << 20,
          .dtype = "bf16",
          .chain = 7 + static_cast<uint64_t>(sequence),
          .awaited = awaited};
}

// Group g is of ranks that share r / 8^(g % 5) or r % 8^(g % 5), so that groups of all sizes cross.
Evidence MakeEvidence(int num_ranks, int num_groups) {
  Evidence evidence{.round = Round(1)};
  for (int r = 0; r < num_ranks; ++r)
    evidence.ranks.push_back({.rank = r, .round = Round(1), .tells_waits = true});
  for (int g = 0; g < num_groups; ++g) {
    int width = 1;
    for (int k = 0; k <= g % 5; ++k) width *= 8;
    const int count = g == 0 ? 1 : std::max(1, num_ranks / width);
    const int first = static_cast<int>(evidence.groups.size());
    evidence.groups.resize(first + count, Group{.name = "group"});
    for (int r = 0; r < num_ranks; ++r) {
      const int group = first + (g % 2 == 0 ? r % count : r / width % count);
      evidence.groups[group].members.push_back(r);
      GroupRecord record{.group = group, .num_issued = 100};
      for (int64_t s = 96; s < 100; ++s) {
        record.operations.push_back(Waiting(s, false));
        record.operations.back().state = OperationState::kDone;
      }
      if (r != num_ranks / 3) {
        record.operations.push_back(Waiting(100, r % num_groups == g));
        ++record.num_issued;
      }
      evidence.ranks[r].groups.push_back(std::move(record));
    }
  }
  return evidence;
}

void Run(int num_ranks, int num_groups) {
  const Evidence evidence = MakeEvidence(num_ranks, num_groups);
  const MonoTime begin = MonoNow();
  const Diagnosis found = Diagnose(evidence);
  std::printf("%d ranks, %d groups each: %.0f ms; %s\n", num_ranks, num_groups,
              absl::ToDoubleMilliseconds(MonoNow() - begin), found.Describe().c_str());
}

}  // namespace
}  // namespace muster::hangs

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 16384;
  const int num_groups = argc > 2 ? std::atoi(argv[2]) : 8;
  muster::hangs::Run(num_ranks, num_groups);
  return 0;
}
