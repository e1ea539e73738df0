// Built without CUDA's headers: no profiler is told of anything.
#include "worker_runtime/engine/action_range.h"

namespace muster::engine {

ActionRange::ActionRange(absl::string_view) {}
ActionRange::~ActionRange() = default;

}  // namespace muster::engine
