// The presets under which every rank trains the whole model.
#pragma once

#include <string>
#include <vector>

#include "muster/plan.h"

namespace muster::testing {

inline std::vector<std::string> DataParallelPresets() {
  std::vector<std::string> names;
  for (const std::string& name : PlanPresetNames()) {
    if (PlanPreset(name)->stages == 1) names.push_back(name);
  }
  return names;
}

}  // namespace muster::testing
