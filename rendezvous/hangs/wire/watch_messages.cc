#include "rendezvous/hangs/wire/watch_messages.h"

#include <algorithm>

namespace muster::hangs {
namespace {

std::vector<SilentRanks> Merge(const std::vector<RankSilence>& silences, bool only_equal) {
  std::vector<SilentRanks> out;
  for (const RankSilence& each : silences) {
    if (each.silent_for < kSilenceTold) continue;
    const bool goes_on = !out.empty() && out.back().phase == each.phase &&
                         out.back().first_rank + out.back().num_ranks == each.rank &&
                         (!only_equal || out.back().silent_for == each.silent_for);
    if (goes_on) {
      ++out.back().num_ranks;
      out.back().silent_for = std::min(out.back().silent_for, each.silent_for);
    } else {
      out.push_back({each.rank, 1, each.phase, each.silent_for});
    }
  }
  return out;
}

}  // namespace

std::vector<SilentRanks> Summarize(const std::vector<RankSilence>& silences) {
  std::vector<SilentRanks> out = Merge(silences, /*only_equal=*/true);
  if (out.size() <= kSilentRanksMax) return out;
  out = Merge(silences, /*only_equal=*/false);
  if (out.size() > kSilentRanksMax) out.resize(kSilentRanksMax);
  return out;
}

}  // namespace muster::hangs
