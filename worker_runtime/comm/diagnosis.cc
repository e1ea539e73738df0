#include "worker_runtime/comm/diagnosis.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::comm {

std::string NameRanks(const std::vector<int>& ranks, int size) {
  constexpr size_t kNamed = 3;
  if (ranks.size() > kNamed) {
    return absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + kNamed, ", "),
                        " and ", ranks.size() - kNamed, " more of ", size);
  }
  if (ranks.size() <= 1) return absl::StrCat("rank ", absl::StrJoin(ranks, ""), " of ", size);
  return absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.end() - 1, ", "), " and ",
                      ranks.back(), " of ", size);
}

absl::Status AbsentError(const Operation& operation, absl::string_view group,
                         const std::vector<int>& absent, int size, absl::Duration timeout,
                         absl::string_view details) {
  return absl::DeadlineExceededError(absl::StrCat(
      NameRanks(absent, size), " did not reach ", Describe(operation, group), " within ",
      absl::FormatDuration(timeout), details.empty() ? "" : "; ", details));
}

absl::Status MismatchError(absl::string_view group, const std::map<int, Operation>& calls) {
  std::map<std::string, std::vector<int>> by_call;
  int64_t sequence = 0;
  for (const auto& [rank, operation] : calls) {
    by_call[Signature(operation)].push_back(rank);
    sequence = operation.sequence;
  }
  std::vector<std::pair<std::string, std::vector<int>>> parties(by_call.begin(), by_call.end());
  std::stable_sort(parties.begin(), parties.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const auto text = [](std::string* out, const auto& party) {
    absl::StrAppend(out, party.second.size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(party.second, ", "), " called ", party.first);
  };
  return absl::InvalidArgumentError(absl::StrCat(
      "the ranks of group ", group, " disagree on operation #", sequence, ": ",
      absl::StrJoin(parties, ", but ", text),
      "; every rank must call the same operations in the same order with the same sizes"));
}

absl::Status TransferMismatchError(absl::string_view group, const Operation& send, int sender,
                                   const Operation& recv) {
  const auto size = [](const Operation& op) {
    return absl::StrCat(FormatBytes(op.bytes()), " ", muster::ToString(op.dtype));
  };
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", sender, " of group ", group, " sends ", size(send), " (", Name(send),
                   "), but rank ", send.peer, " receives ", size(recv), " (", Name(recv), ")"));
}

absl::Status GoneError(const Operation& operation, absl::string_view group, int gone, int size,
                       absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat(NameRanks({gone}, size), " died or closed its communicator before the end of ",
                   Describe(operation, group), why.empty() ? "" : ": ", why));
}

absl::Status AbortError(int rank, int size, absl::string_view group, absl::string_view reason) {
  return absl::AbortedError(
      absl::StrCat(NameRanks({rank}, size), " aborted group ", group, ": ", reason));
}

absl::Status ClosedError(int rank, int size, absl::string_view group) {
  return absl::AbortedError(absl::StrCat(NameRanks({rank}, size), " closed group ", group));
}

}  // namespace muster::comm
