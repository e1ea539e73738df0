// The hang watch of ranks that tell nothing: looks at what they use, and says who does nothing.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/watch/hang_watch.h"
#include "proto/base/words.h"
#include "proto/io/log.h"

namespace muster::agent {

// Those that tell nothing, and those of PyTorch that wait for no other: of what they do PyTorch
// tells nothing either.
bool HangWatch::IsQuietPossible(const verdict::Pulse& pulse) const {
  if (!pulse.is_told) return true;
  const TorchRank* torch = torch_.Find(pulse.rank - round_.first_rank);
  const bool has_board = pulse.phase != Phase::kStarting || pulse.num_steps > 0;
  // Over several nodes the server may have given notice of them.
  const bool is_alone = round_.num_nodes == 1 && !core_.HasIncident();
  return torch != nullptr && !has_board && !pulse.is_waiting && is_alone &&
         core_.SilenceOf(pulse.rank) >= verdict::kSuspiciousSilence;
}

void HangWatch::LookForQuietRanks(const std::vector<verdict::Pulse>& pulses, MonoTime now) {
  if (!quiet_ranks_.IsDue(now)) return;
  std::vector<QuietRanks::RankUse> uses;
  for (const verdict::Pulse& pulse : pulses) {
    const auto worker = workers_.find(pulse.rank - round_.first_rank);
    if (worker == workers_.end() || worker->second.has_ended || !IsQuietPossible(pulse)) continue;
    const std::optional<ProcessUse> use = UseOfTree(worker->second.pid);
    if (use) uses.push_back({pulse.rank, *use});
  }
  const std::optional<QuietRanks::Change> change = quiet_ranks_.Listen(uses, now);
  if (!change) return;
  if (change->is_over) return Say(*change, {});
  constexpr size_t kNamedMax = 4;
  std::vector<RankReport> reports;
  for (const int rank : change->quiet) {
    if (reports.size() == kNamedMax) break;
    const int pid = workers_.at(rank - round_.first_rank).pid;
    const std::optional<ProcessLook> look = LookAtProcess(pid, now);
    reports.push_back({.rank = rank,
                       .pid = pid,
                       .silent_for = change->quiet_for,
                       .doing = look ? InWords(*look, std::nullopt) : "ended"});
  }
  looks_.Take(LookDepth::kGpus, std::move(reports),
              [this, round = round_.round, change = *change](const std::vector<RankReport>& quiet) {
                if (is_watching_ && round == round_.round) Say(change, quiet);
              });
}

void HangWatch::Say(const QuietRanks::Change& change, const std::vector<RankReport>& quiet) const {
  const bool is_one = change.quiet.size() == 1;
  std::string text;
  if (change.is_over) {
    text = absl::StrCat(RanksInWords(change.quiet), is_one ? " is" : " are",
                        " active again, after ", muster::InWords(change.quiet_for));
  } else {
    text = absl::StrCat(RanksInWords(change.quiet), is_one ? " has" : " have",
                        " used almost no processor time and moved almost no bytes for ",
                        muster::InWords(change.quiet_for), "; what ",
                        is_one ? "it waits" : "they wait",
                        " for is unknown, because the program does not report it");
    if (!change.busy.empty()) {
      absl::StrAppend(&text, "; ", RanksInWords(change.busy),
                      change.busy.size() == 1 ? " is" : " are", " active");
    }
    for (const RankReport& rank : quiet)
      absl::StrAppend(&text, "; ", verdict::InWordsWithPython(rank));
  }
  log::Write(
      change.is_over ? log::Level::kInfo : log::Level::kWarning, "quiet_ranks", text,
      {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
}

}  // namespace muster::agent
