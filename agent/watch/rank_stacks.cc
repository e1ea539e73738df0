#include "agent/watch/rank_stacks.h"

#include <string>
#include <utility>

#include "agent/watch/native_stacks.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kStackTime = absl::Seconds(8);  // for all ranks together

}  // namespace

void ReadStacksOfRanks(std::vector<verdict::RankReport>& ranks) {
  const MonoTime deadline = MonoNow() + kStackTime;
  for (verdict::RankReport& rank : ranks) {
    if (rank.pid == 0) {
      rank.no_frames = "it has ended";
      continue;
    }
    if (MonoNow() >= deadline) {
      rank.no_frames = "no time was left";
      continue;
    }
    auto stacks = ReadStacks(rank.pid, deadline);
    if (stacks.ok()) {
      rank.frames = std::move(stacks->front().frames);
    } else {
      rank.no_frames = std::string(stacks.status().message());
    }
  }
}

}  // namespace muster::agent
