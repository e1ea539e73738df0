#include "worker_runtime/comm/gloo/meeting.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"

namespace muster::comm {
namespace {

// Rank 0's verdict follows its deadline, which may be a little later than ours.
constexpr absl::Duration kVerdictTime = absl::Seconds(2);
constexpr char kAllCame[] = "all";

std::string Key(const MeetingOptions& options, absl::string_view what) {
  return absl::StrCat(options.prefix, "/meeting/", what);
}
std::string HelloKey(const MeetingOptions& options, int rank) {
  return Key(options, absl::StrCat("rank", rank));
}
std::string MachineKey(const MeetingOptions& options, absl::string_view machine) {
  return Key(options, absl::StrCat("machine/", machine));
}

absl::Status AbsentRanks(const MeetingOptions& options, const std::vector<int>& absent) {
  return absl::DeadlineExceededError(
      absl::StrCat(NameRanks(absent, options.size), " did not come to group ", options.group,
                   "; rank ", options.rank, " waited until its connect_timeout"));
}

// Tells the others also where somebody is missing, in the same words.
absl::StatusOr<std::vector<int>> Gather(Store& store, const MeetingOptions& options) {
  std::map<std::string, std::vector<int>> machines = {{options.machine, {0}}};
  std::vector<int> absent;
  for (int rank = 1; rank < options.size; ++rank) {
    absl::StatusOr<std::string> machine = store.Wait(HelloKey(options, rank), options.deadline);
    if (absl::IsDeadlineExceeded(machine.status())) {
      absent.push_back(rank);
    } else if (!machine.ok()) {
      return machine.status();
    } else {
      machines[*machine].push_back(rank);
    }
  }
  const MonoTime deadline = options.deadline + kVerdictTime;
  if (!absent.empty()) {
    const absl::Status failure = AbsentRanks(options, absent);
    store.Set(Key(options, "verdict"), std::string(failure.message()), deadline).IgnoreError();
    return failure;
  }
  for (const auto& [machine, ranks] : machines) {
    if (machine.empty()) continue;
    MUSTER_RETURN_IF_ERROR(
        store.Set(MachineKey(options, machine), absl::StrJoin(ranks, ","), deadline));
  }
  MUSTER_RETURN_IF_ERROR(store.Set(Key(options, "verdict"), kAllCame, deadline));
  return options.machine.empty() ? std::vector<int>{0} : machines[options.machine];
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

absl::Status AwaitVerdict(Store& store, const MeetingOptions& options) {
  absl::StatusOr<std::string> verdict = store.Wait(Key(options, "verdict"), options.deadline);
  if (absl::IsDeadlineExceeded(verdict.status())) {
    // Nobody waits for the others but rank 0. If it is not there itself, nobody is going to say so.
    if (!store.Wait(HelloKey(options, 0), MonoNow() + kVerdictTime / 4).ok()) {
      return AbsentRanks(options, {0});
    }
    verdict = store.Wait(Key(options, "verdict"), options.deadline + kVerdictTime);
  }
  MUSTER_RETURN_IF_ERROR(verdict.status());
  return *verdict == kAllCame ? absl::OkStatus() : absl::DeadlineExceededError(*verdict);
}

}  // namespace

absl::StatusOr<std::vector<int>> Meet(Store& store, const MeetingOptions& options) {
  MUSTER_RETURN_IF_ERROR(
      store.Set(HelloKey(options, options.rank), options.machine, options.deadline));
  if (options.rank == 0) return Gather(store, options);
  MUSTER_RETURN_IF_ERROR(AwaitVerdict(store, options));
  if (options.machine.empty()) return std::vector<int>{options.rank};
  MUSTER_ASSIGN_OR_RETURN(const std::string ranks, store.Wait(MachineKey(options, options.machine),
                                                              options.deadline + kVerdictTime));
  return ParseRanks(ranks);
}

}  // namespace muster::comm
