// The streams that launches of the emulated simt.h name.
#pragma once

#include <functional>
#include <string>

#include "worker_runtime/kernels/launch.h"

namespace muster::testing {

// Every StreamHandle of an emulated device points to one.
class EmulatedStream {
 public:
  // Empty, or what went wrong.
  using WorkFunction = std::function<std::string()>;

  virtual ~EmulatedStream() = default;
  // `work` runs later, once or, as a part of a graph, several times.
  virtual kernels::LaunchError Enqueue(WorkFunction work) = 0;
  // The same, but not before `may_run` says yes: asked whenever the device looks for work, by any
  // thread.
  virtual kernels::LaunchError EnqueueWhen(std::function<bool()> may_run, WorkFunction work) = 0;

  static EmulatedStream& Of(kernels::StreamHandle stream) {
    return *static_cast<EmulatedStream*>(stream);
  }
};

}  // namespace muster::testing
