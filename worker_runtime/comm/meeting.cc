#include "worker_runtime/comm/meeting.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"

namespace muster::comm {
namespace {

// Rank 0's verdict follows its deadline, which may be a little later than ours.
constexpr absl::Duration kVerdictTime = absl::Seconds(2);
// Begins what rank 0 says where all have come; the decision follows.
constexpr char kAllCame[] = "all ";

std::string Key(const MeetingOptions& options, absl::string_view what) {
  return absl::StrCat(options.prefix, "/meeting/", what);
}
std::string HelloKey(const MeetingOptions& options, int rank) {
  return Key(options, absl::StrCat("rank", rank));
}
std::string VerdictKey(const MeetingOptions& options) { return Key(options, "verdict"); }
std::string MachineKey(const MeetingOptions& options, absl::string_view machine) {
  return Key(options, absl::StrCat("machine/", machine));
}

absl::Status AbsentRanks(const MeetingOptions& options, const std::vector<int>& absent) {
  return absl::DeadlineExceededError(
      absl::StrCat(NameRanks(absent, options.size), " did not come to group ", options.group,
                   "; rank ", options.rank, " waited until its connect_timeout"));
}

// Tells the others also where somebody is missing, in the same words.
absl::StatusOr<std::string> HearAll(Store& store, const MeetingOptions& options,
                                    const std::string& own, DecideForAll decide) {
  std::vector<std::string> said = {own};
  std::vector<int> absent;
  for (int rank = 1; rank < options.size; ++rank) {
    absl::StatusOr<std::string> value = store.Wait(HelloKey(options, rank), options.deadline);
    if (absl::IsDeadlineExceeded(value.status())) {
      absent.push_back(rank);
    } else if (!value.ok()) {
      return value.status();
    } else {
      said.push_back(*std::move(value));
    }
  }
  const MonoTime deadline = options.deadline + kVerdictTime;
  if (!absent.empty()) {
    const absl::Status failure = AbsentRanks(options, absent);
    store.Set(VerdictKey(options), std::string(failure.message()), deadline).IgnoreError();
    return failure;
  }
  MUSTER_ASSIGN_OR_RETURN(std::string decision, decide(said));
  MUSTER_RETURN_IF_ERROR(
      store.Set(VerdictKey(options), absl::StrCat(kAllCame, decision), deadline));
  return decision;
}

absl::StatusOr<std::vector<int>> ParseRanks(absl::string_view text) {
  std::vector<int> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &ranks.emplace_back())) {
      return absl::InternalError(absl::StrCat("'", text, "' is not a list of ranks"));
    }
  }
  return ranks;
}

absl::StatusOr<std::string> AwaitVerdict(Store& store, const MeetingOptions& options) {
  absl::StatusOr<std::string> verdict = store.Wait(VerdictKey(options), options.deadline);
  if (absl::IsDeadlineExceeded(verdict.status())) {
    // Nobody waits for the others but rank 0. If it is not there itself, nobody is going to say so.
    if (!store.Wait(HelloKey(options, 0), MonoNow() + kVerdictTime / 4).ok()) {
      return AbsentRanks(options, {0});
    }
    verdict = store.Wait(VerdictKey(options), options.deadline + kVerdictTime);
  }
  MUSTER_RETURN_IF_ERROR(verdict.status());
  absl::string_view decision = *verdict;
  if (absl::ConsumePrefix(&decision, kAllCame)) return std::string(decision);
  return absl::DeadlineExceededError(*verdict);
}

}  // namespace

absl::StatusOr<std::string> DecideTogether(Store& store, const MeetingOptions& options,
                                           const std::string& said, DecideForAll decide) {
  MUSTER_RETURN_IF_ERROR(store.Set(HelloKey(options, options.rank), said, options.deadline));
  return options.rank == 0 ? HearAll(store, options, said, decide) : AwaitVerdict(store, options);
}

absl::Status SayWithoutWaiting(Store& store, const MeetingOptions& options, const std::string& said,
                               const std::string& decision) {
  if (options.rank > 0) {
    return store.Set(HelloKey(options, options.rank), said, options.deadline);
  }
  return store.Set(VerdictKey(options), absl::StrCat(kAllCame, decision), options.deadline);
}

absl::StatusOr<std::vector<int>> Meet(Store& store, const MeetingOptions& options) {
  const MonoTime deadline = options.deadline + kVerdictTime;
  const auto tell_machines =
      [&](absl::Span<const std::string> said) -> absl::StatusOr<std::string> {
    std::map<std::string, std::vector<int>> machines;
    for (int rank = 0; rank < options.size; ++rank) machines[said[rank]].push_back(rank);
    for (const auto& [machine, ranks] : machines) {
      if (machine.empty()) continue;
      MUSTER_RETURN_IF_ERROR(
          store.Set(MachineKey(options, machine), absl::StrJoin(ranks, ","), deadline));
    }
    return std::string();
  };
  MUSTER_RETURN_IF_ERROR(DecideTogether(store, options, options.machine, tell_machines).status());
  if (options.machine.empty()) return std::vector<int>{options.rank};
  MUSTER_ASSIGN_OR_RETURN(const std::string ranks,
                          store.Wait(MachineKey(options, options.machine), deadline));
  return ParseRanks(ranks);
}

}  // namespace muster::comm
