#include "rendezvous/hangs/wire/abort_wire.h"

#include "proto/watch.pb.h"
#include "rendezvous/hangs/wire/watch_parts_wire.h"
#include "rendezvous/hangs/wire/watch_wire.h"

namespace muster::rendezvous {
namespace {

constexpr ListBounds kSameCalls{hangs::kSameCallsMax, hangs::kSameCallsMax};

void CallFields(Wire<proto::WatchLastCalls::Call> wire, hangs::Call& call) {
  using P = proto::WatchLastCalls::Call;
  wire.Text("call.group", kWatchedText, &P::group, &P::mutable_group, call.group);
  wire.Text("call.label", kWatchedText, &P::label, &P::mutable_label, call.label);
  wire.Inner(&P::operation, &P::mutable_operation, call.operation, OperationFields);
}

void CallsOfRankFields(Wire<proto::WatchLastCalls::Rank> wire, hangs::RankCalls& rank) {
  using P = proto::WatchLastCalls::Rank;
  wire.Number("last_calls.rank", kRanks, &P::rank, &P::set_rank, rank.rank);
  wire.Time("last_calls.age", kMillis, &P::age_ms, &P::set_age_ms, rank.age);
  wire.List("last_calls.calls", {hangs::kLastCallsMax}, &P::calls, &P::mutable_calls, rank.calls,
            CallFields);
}

void SameCallFields(Wire<proto::WatchAborts::SameCall> wire, hangs::SameCall& call) {
  using P = proto::WatchAborts::SameCall;
  wire.Text("call.label", kWatchedText, &P::label, &P::mutable_label, call.label);
  wire.Inner(&P::operation, &P::mutable_operation, call.operation, OperationFields);
  Runs(wire, "call.ranks", &P::ranks, &P::mutable_ranks, call.ranks);
  wire.Time("call.age", kMillis, &P::age_ms, &P::set_age_ms, call.age);
}

}  // namespace

void LastCallsFields(Wire<proto::WatchLastCalls> wire, hangs::NodeLastCalls& word) {
  using P = proto::WatchLastCalls;
  wire.Number("last_calls.round", kCount, &P::round, &P::set_round, word.round);
  Runs(wire, "last_calls.aborted", &P::aborted, &P::mutable_aborted, word.aborted);
  wire.List("last_calls.ranks", {kWatchedRanksMax}, &P::ranks, &P::mutable_ranks, word.ranks,
            CallsOfRankFields);
  if (wire.decodes()) return;
  KeepWithin(kWatchWordBytesMax, kWatchedRankBytesMax, LeftOut::kEach, wire.out(),
             &P::mutable_ranks);
}

void AbortsFields(Wire<proto::WatchAborts> wire, hangs::SayAborts& order) {
  using P = proto::WatchAborts;
  hangs::AbortReport& report = order.report;
  wire.Number("aborts.round", kCount, &P::round, &P::set_round, order.round);
  Runs(wire, "aborts.aborted", &P::aborted, &P::mutable_aborted, report.aborted);
  wire.List("aborts.last", kSameCalls, &P::last, &P::mutable_last, report.last, SameCallFields);
  wire.List("aborts.differences", kSameCalls, &P::differences, &P::mutable_differences,
            report.differences, SameCallFields);
  Runs(wire, "aborts.unknown", &P::unknown, &P::mutable_unknown, report.unknown);
}

}  // namespace muster::rendezvous
