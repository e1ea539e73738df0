#include "proto/io/stop_wire.h"

#include "proto/agent.pb.h"
#include "proto/io/wire_fields.h"

namespace muster {
namespace {

void StopFields(Wire<proto::StopState> wire, StopState& stop) {
  using P = proto::StopState;
  constexpr TextBounds kReason{kMaxStopReasonBytes, kMaxStopReasonBytes};
  wire.Plain(&P::is_stopping, &P::set_is_stopping, stop.is_stopping);
  const bool has_step = wire.Has(&P::has_step, stop.step);
  wire.Require(stop.is_stopping || !has_step, "stop.step", "is given without a stop");
  if (has_step) wire.Number("stop.step", kCount, &P::step, &P::set_step, *stop.step);
  wire.Text("stop.reason", kReason, &P::reason, &P::mutable_reason, stop.reason);
}

}  // namespace

void Encode(const StopState& stop, proto::StopState* out) { EncodeFields(stop, out, StopFields); }

absl::StatusOr<StopState> Decode(const proto::StopState& in) {
  return DecodeFields<StopState>(in, StopFields);
}

}  // namespace muster
