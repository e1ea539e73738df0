#include <nvtx3/nvToolsExt.h>

#include <string>

#include "worker_runtime/engine/action_range.h"

namespace muster::engine {

ActionRange::ActionRange(absl::string_view name) { nvtxRangePushA(std::string(name).c_str()); }
ActionRange::~ActionRange() { nvtxRangePop(); }

}  // namespace muster::engine
