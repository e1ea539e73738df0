#include "agent/torch_store/barriers.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster::agent {
namespace {

constexpr size_t kBarriersMax = 64, kConnectionsMax = 128 * 1024;
// Barriers that count with a key: every rank adds 1 to it and waits for another, which the last
// sets.
constexpr absl::string_view kGroup = "store_based_barrier_key:", kGroupOpens = ":last_worker";
constexpr absl::string_view kMembers = "/num_members", kMembersOpen = "/last_member";

// Such a barrier is behind the making of a group, and for all ranks if the group's name is a
// number: other names are of groups that only their own ranks make.
bool IsOfAllRanks(absl::string_view key) {
  const size_t at = key.rfind(kGroup);
  if (at == absl::string_view::npos) return false;
  const absl::string_view group = key.substr(at + kGroup.size());
  return !group.empty() && std::all_of(group.begin(), group.end(), absl::ascii_isdigit);
}

}  // namespace

void Barriers::Note(StoreConnection from, const TorchRequest& request, const StoreWait* wait) {
  if (request.keys.empty()) return;
  const std::string& key = request.keys[0];
  switch (request.command) {
    case StoreCommand::kBarrier:
      if (wait != nullptr && wait->barrier == key) {
        Come(from, key, key, request.numbers[0]);
      } else {
        closed_.erase(key);
      }
      return;
    case StoreCommand::kAdd:
      if (request.numbers[0] != 1) return;
      if (absl::string_view name = key; absl::ConsumeSuffix(&name, kMembers)) {
        Come(from, absl::StrCat(name, kMembersOpen), std::string(name), 0);
      } else if (IsOfAllRanks(key)) {
        Come(from, absl::StrCat(key, kGroupOpens), key, world_size_);
      }
      return;
    case StoreCommand::kSet:
      if (absl::EndsWith(key, kGroupOpens) || absl::EndsWith(key, kMembersOpen)) closed_.erase(key);
      return;
    default:
      return;
  }
}

void Barriers::Come(StoreConnection from, const std::string& awaited, const std::string& name,
                    int64_t needed) {
  if (closed_.size() >= kBarriersMax && !closed_.contains(awaited)) return;
  StoreBarrier& barrier = closed_[awaited];
  barrier.name = name;
  barrier.needed = needed;
  if (barrier.came.size() < kConnectionsMax) barrier.came.insert(from);
}

const StoreBarrier* Barriers::Find(const std::string& awaited) const {
  const auto found = closed_.find(awaited);
  return found == closed_.end() ? nullptr : &found->second;
}

std::string ComeInWords(const StoreBarrier& barrier, const Attendance& round) {
  const Attendance there = round.Among(barrier.came);
  const bool says = barrier.needed > 0;
  if ((!says || barrier.needed == round.world_size()) && !there.IsComplete()) {
    const int present = there.NumPresent();
    return absl::StrCat(present, says ? absl::StrCat(" of ", barrier.needed) : "",
                        !says && present == 1 ? " rank" : " ranks",
                        present == 1 ? " is there; " : " are there; ",
                        says ? "" : "if it is for all, ", "waiting for ", there.MissingInWords());
  }
  const std::string ranks = there.PresentInWords();
  return absl::StrCat(barrier.came.size(), says ? absl::StrCat(" of ", barrier.needed) : "",
                      barrier.came.size() == 1 ? " is" : " are", " there",
                      ranks.empty() ? "" : absl::StrCat(" (", ranks, ")"), "; waiting");
}

std::string NeedsInWords(const StoreBarrier& barrier, const Attendance& round) {
  const Attendance there = round.Among(barrier.came);
  const bool says = barrier.needed > 0;
  if ((!says || barrier.needed == round.world_size()) && !there.IsComplete()) {
    const std::string missing = there.MissingInWords();
    return says ? absl::StrCat("needs ", barrier.needed, " ranks, of which ", there.NumPresent(),
                               " came; missing: ", missing)
                : absl::StrCat("was not opened; if it is for all, missing: ", missing);
  }
  const std::string ranks = there.PresentInWords();
  return absl::StrCat(
      says ? absl::StrCat("needs ", barrier.needed, ", of which ") : "was not opened; ",
      barrier.came.size(), " came", ranks.empty() ? "" : absl::StrCat(": ", ranks));
}

}  // namespace muster::agent
