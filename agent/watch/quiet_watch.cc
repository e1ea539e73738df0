#include "agent/watch/quiet_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

std::string Describe(const QuietRanks::Change& change, bool await_files,
                     const std::vector<hangs::RankReport>& quiet) {
  const bool is_one = change.quiet.size() == 1;
  std::string text;
  if (change.is_over) {
    text = absl::StrCat(RanksInWords(change.quiet), is_one ? " is" : " are",
                        " active again, after ", muster::InWords(change.quiet_for));
  } else if (await_files) {
    text = absl::StrCat(RanksInWords(change.quiet), is_one ? " has" : " have",
                        " waited for a file system for ", muster::InWords(change.quiet_for));
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
  }
  for (const hangs::RankReport& rank : quiet) {
    absl::StrAppend(&text, "; ", hangs::InWordsWithPython(rank));
  }
  return text;
}

}  // namespace

QuietWatch::QuietWatch(const LocalRanks& ranks, RankLooks& looks,
                       std::function<void(bool is_over, const std::string& text)> say)
    : ranks_(ranks), looks_(looks), say_(std::move(say)) {}

// Those that tell nothing, and those of PyTorch that wait for no other: of what they do PyTorch
// tells nothing either.
bool QuietWatch::IsQuietPossible(const hangs::Pulse& pulse, bool is_looked_into) const {
  if (!pulse.is_told) return true;
  const TorchRank* torch = ranks_.torch().Find(pulse.rank - ranks_.round().first_rank);
  const bool has_board = pulse.phase != Phase::kStarting || pulse.num_steps > 0;
  return torch != nullptr && !has_board && !pulse.is_waiting && !is_looked_into &&
         ranks_.silences().SilenceOf(pulse.rank) >= hangs::kSuspiciousSilence;
}

void QuietWatch::StartRound() {
  awaiting_files_.StartRound();
  quiet_ranks_.StartRound();
  left_alone_.clear();
}

void QuietWatch::Tick(const std::vector<hangs::Pulse>& pulses, bool is_looked_into, MonoTime now) {
  const bool is_due = quiet_ranks_.IsDue(now), is_due_for_files = awaiting_files_.IsDue(now);
  if (!is_due && !is_due_for_files) return;
  std::vector<QuietRanks::RankUse> of_files, of_others;
  for (const hangs::Pulse& pulse : pulses) {
    const std::optional<int> pid = ranks_.PidOf(pulse.rank);
    if (!pid || !IsQuietPossible(pulse, is_looked_into)) continue;
    const bool awaits_files = DoesTreeAwaitFiles(*pid, now);
    const bool is_left_alone =
        std::find(left_alone_.begin(), left_alone_.end(), pulse.rank) != left_alone_.end();
    if (!awaits_files && (!is_due || is_left_alone)) continue;
    const std::optional<ProcessUse> use = UseOfTree(*pid, CountedThreads::kOwn);
    if (use) (awaits_files ? of_files : of_others).push_back({pulse.rank, *use});
  }
  if (is_due_for_files) Say(awaiting_files_.Listen(of_files, now), /*await_files=*/true, now);
  if (is_due) Say(quiet_ranks_.Listen(of_others, now), /*await_files=*/false, now);
}

void QuietWatch::Say(const std::optional<QuietRanks::Change>& change, bool await_files,
                     MonoTime now) {
  if (!change) return;
  if (change->is_over) return say_(/*is_over=*/true, Describe(*change, await_files, {}));
  constexpr size_t kNamedMax = 4;
  std::vector<hangs::RankReport> reports;
  for (const int rank : change->quiet) {
    if (reports.size() == kNamedMax) break;
    const int pid = ranks_.PidOf(rank).value_or(0);
    const std::optional<ProcessLook> look = LookAtProcess(pid, now);
    reports.push_back({.rank = rank,
                       .pid = pid,
                       .silent_for = change->quiet_for,
                       .doing = look ? InWords(*look, std::nullopt) : "ended"});
  }
  looks_.Take(LookDepth::kGpus, std::move(reports),
              [this, await_files, round = ranks_.round().round,
               change = *change](const std::vector<hangs::RankReport>& quiet) {
                if (round != ranks_.round().round) return;
                say_(/*is_over=*/false, Describe(change, await_files, quiet));
              });
}

}  // namespace muster::agent
