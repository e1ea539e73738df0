// Built with CUDA's headers: ranges for a profiler that may be attached.
#include <nvtx3/nvToolsExt.h>

#include <string>

#include "worker_runtime/engine/action_range.h"

namespace muster::engine {
namespace {

// NVTX sets its functions' addresses at the first call, without a lock that later calls would take:
// once here, before any rank that is a thread makes one.
void InitializeOnce() {
  [[maybe_unused]] static const bool is_initialized = [] {
    nvtxInitialize(nullptr);
    return true;
  }();
}

}  // namespace

ActionRange::ActionRange(absl::string_view name) {
  InitializeOnce();
  nvtxRangePushA(std::string(name).c_str());
}
ActionRange::~ActionRange() { nvtxRangePop(); }

}  // namespace muster::engine
