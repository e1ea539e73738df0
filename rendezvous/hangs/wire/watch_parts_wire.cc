#include "rendezvous/hangs/wire/watch_parts_wire.h"

#include "proto/watch.pb.h"

namespace muster::rendezvous {

void EncodeRuns(const std::vector<int>& ranks, WireRuns& out) {
  for (size_t begin = 0; begin < ranks.size() && out.size() < 2 * kRunsMax;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out.Add(ranks[begin]);
    out.Add(static_cast<int>(end - begin) - 1);
    begin = end;
  }
}

std::vector<int> TakeRuns(const WireRuns& in, absl::string_view name, WireCheck& check) {
  std::vector<int> out;
  check.Require(in.size() % 2 == 0, name, "are not pairs");
  if (!check.List(name, in.size(), 2 * kRunsMax)) return out;
  for (int i = 0; i + 1 < in.size(); i += 2) {
    const int first = check.Range(name, in.Get(i), 0, kWatchedRanksMax);
    const int more = check.Range(name, in.Get(i + 1), 0, kWatchedRanksMax);
    check.Require(out.size() + static_cast<size_t>(more) < size_t{2} * kWatchedRanksMax, name,
                  "are too many");
    if (!check.status().ok()) return out;
    for (int k = 0; k <= more; ++k) out.push_back(first + k);
  }
  return out;
}

void OperationFields(Wire<proto::WatchedOperation> wire, hangs::Operation& operation) {
  using P = proto::WatchedOperation;
  wire.Number("operation.kind", UpTo(OperationKind::kRecv), &P::kind, &P::set_kind, operation.kind);
  wire.Number("operation.state", UpTo(OperationState::kFailed), &P::state, &P::set_state,
              operation.state);
  wire.Plain(&P::sequence, &P::set_sequence, operation.sequence);
  wire.Plain(&P::bytes, &P::set_bytes, operation.bytes);
  wire.Plain(&P::peer, &P::set_peer, operation.peer);
  wire.Text("operation.dtype", kWatchedText, &P::dtype, &P::mutable_dtype, operation.dtype);
  wire.Text("operation.name", kWatchedText, &P::name, &P::mutable_name, operation.name);
  wire.Plain(&P::chain, &P::set_chain, operation.chain);
  wire.Plain(&P::awaited, &P::set_awaited, operation.awaited);
}

}  // namespace muster::rendezvous
