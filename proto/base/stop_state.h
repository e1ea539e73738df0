// Whether the workers of a round stop, and after which step: what an agent tells those of its
// workers that have promised to obey. Decoded by proto/io/stop_wire.h from proto/agent.proto.
//
// Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// A complete state, not a command.
struct StopState {
  bool is_stopping = false;
  // Absent while the ranks are still asked how far they are: nobody begins a further step then. No
  // rank has begun a step beyond it once it is there.
  std::optional<int64_t> step;
  std::string reason;  // for people, one sentence without its end
  friend bool operator==(const StopState&, const StopState&) = default;
};

// No program is further: thirty steps a second for a century. Whoever says more is refused, since
// all ranks would wait for that step.
inline constexpr int64_t kMaxStep = 100'000'000'000;

inline constexpr size_t kMaxStopReasonBytes = 4096;

}  // namespace muster
