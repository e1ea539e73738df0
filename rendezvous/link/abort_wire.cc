#include "rendezvous/link/abort_wire.h"

#include <utility>
#include <vector>

#include "proto/watch.pb.h"
#include "rendezvous/link/watch_parts_wire.h"
#include "rendezvous/link/watch_wire.h"

namespace muster::rendezvous {
namespace {

template <typename List>
void EncodeCalls(const std::vector<verdict::SameCall>& calls, List* out) {
  for (const verdict::SameCall& call : calls) {
    if (out->size() >= static_cast<int>(verdict::kSameCallsMax)) return;
    proto::WatchAborts::SameCall* to = out->Add();
    to->set_label(Cut(call.label));
    EncodeOperation(call.operation, to->mutable_operation());
    EncodeRuns(call.ranks, to->mutable_ranks());
    to->set_age_ms(Millis(call.age));
  }
}

template <typename List>
std::vector<verdict::SameCall> TakeCalls(const List& in, absl::string_view field,
                                         WireCheck& check) {
  std::vector<verdict::SameCall> out;
  if (!check.List(field, in.size(), verdict::kSameCallsMax)) return out;
  for (const proto::WatchAborts::SameCall& call : in) {
    out.push_back({.label = TakeText(check, "call.label", call.label()),
                   .operation = TakeOperation(call.operation(), check),
                   .ranks = TakeRuns(call.ranks(), "call.ranks", check),
                   .age = FromMillis(check, "call.age", call.age_ms())});
  }
  return out;
}

}  // namespace

void EncodeLastCalls(const verdict::NodeLastCalls& in, proto::WatchLastCalls* out) {
  out->set_round(in.round.value());
  EncodeRuns(in.aborted, out->mutable_aborted());
  size_t bytes = out->ByteSizeLong();
  for (const verdict::RankCalls& rank : in.ranks) {
    proto::WatchLastCalls::Rank* to = out->add_ranks();
    to->set_rank(rank.rank);
    to->set_age_ms(Millis(rank.age));
    for (const verdict::Call& call : rank.calls) {
      proto::WatchLastCalls::Call* to_call = to->add_calls();
      to_call->set_group(Cut(call.group));
      to_call->set_label(Cut(call.label));
      EncodeOperation(call.operation, to_call->mutable_operation());
    }
    const size_t more = to->ByteSizeLong() + 8;
    if (more > kWatchedRankBytesMax || bytes + more > kWatchWordBytesMax) {
      out->mutable_ranks()->RemoveLast();
    } else {
      bytes += more;
    }
  }
}

verdict::NodeLastCalls TakeLastCalls(const proto::WatchLastCalls& in, WireCheck& check) {
  verdict::NodeLastCalls out{.round = Round(check.Count("last_calls.round", in.round())),
                             .aborted = TakeRuns(in.aborted(), "last_calls.aborted", check)};
  if (!check.List("last_calls.ranks", in.ranks_size(), kWatchedRanksMax)) return out;
  for (const proto::WatchLastCalls::Rank& rank : in.ranks()) {
    verdict::RankCalls taken{
        .rank = check.Range("last_calls.rank", rank.rank(), 0, kWatchedRanksMax),
        .age = FromMillis(check, "last_calls.age", rank.age_ms())};
    if (!check.List("last_calls.calls", rank.calls_size(), verdict::kLastCallsMax)) return out;
    for (const proto::WatchLastCalls::Call& call : rank.calls()) {
      taken.calls.push_back({.group = TakeText(check, "call.group", call.group()),
                             .label = TakeText(check, "call.label", call.label()),
                             .operation = TakeOperation(call.operation(), check)});
    }
    out.ranks.push_back(std::move(taken));
  }
  return out;
}

void EncodeAborts(const verdict::SayAborts& in, proto::WatchAborts* out) {
  out->set_round(in.round.value());
  EncodeRuns(in.report.aborted, out->mutable_aborted());
  EncodeCalls(in.report.last, out->mutable_last());
  EncodeCalls(in.report.differences, out->mutable_differences());
  EncodeRuns(in.report.unknown, out->mutable_unknown());
}

verdict::SayAborts TakeAborts(const proto::WatchAborts& in, WireCheck& check) {
  return {.round = Round(check.Count("aborts.round", in.round())),
          .report = {.aborted = TakeRuns(in.aborted(), "aborts.aborted", check),
                     .last = TakeCalls(in.last(), "aborts.last", check),
                     .differences = TakeCalls(in.differences(), "aborts.differences", check),
                     .unknown = TakeRuns(in.unknown(), "aborts.unknown", check)}};
}

}  // namespace muster::rendezvous
