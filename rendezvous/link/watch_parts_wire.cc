#include "rendezvous/link/watch_parts_wire.h"

#include "proto/watch.pb.h"

namespace muster::rendezvous {

void EncodeOperation(const verdict::Operation& in, proto::WatchedOperation* out) {
  out->set_kind(static_cast<int>(in.kind));
  out->set_state(static_cast<int>(in.state));
  out->set_sequence(in.sequence);
  out->set_bytes(in.bytes);
  out->set_peer(in.peer);
  out->set_dtype(Cut(in.dtype));
  out->set_chain(in.chain);
  out->set_awaited(in.awaited);
  out->set_name(Cut(in.name));
}

verdict::Operation TakeOperation(const proto::WatchedOperation& in, WireCheck& check) {
  return {.kind = FromNumber(check, "operation.kind", in.kind(), OperationKind::kRecv),
          .state = FromNumber(check, "operation.state", in.state(), OperationState::kFailed),
          .sequence = in.sequence(),
          .bytes = in.bytes(),
          .peer = in.peer(),
          .dtype = TakeText(check, "operation.dtype", in.dtype()),
          .name = TakeText(check, "operation.name", in.name()),
          .chain = in.chain(),
          .awaited = in.awaited()};
}

}  // namespace muster::rendezvous
