#include "proto/io/stop_wire.h"

#include "proto/agent.pb.h"
#include "proto/base/status_macros.h"
#include "proto/io/wire_check.h"

namespace muster {

void Encode(const StopState& stop, proto::StopState* out) {
  out->set_is_stopping(stop.is_stopping);
  if (stop.step.has_value()) out->set_step(*stop.step);
  out->set_reason(stop.reason.substr(0, kMaxStopReasonBytes));
}

absl::StatusOr<StopState> Decode(const proto::StopState& in) {
  WireCheck check;
  StopState out;
  out.is_stopping = in.is_stopping();
  check.Require(out.is_stopping || !in.has_step(), "stop.step", "is given without a stop");
  if (in.has_step()) out.step = check.Count("stop.step", in.step());
  out.reason = check.Text("stop.reason", in.reason(), kMaxStopReasonBytes);
  MUSTER_RETURN_IF_ERROR(check.status());
  return out;
}

}  // namespace muster
