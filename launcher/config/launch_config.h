// What a file or the options of another launcher say to `muster run`.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "launcher/schedulers/scheduler.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct LaunchConfig {
  std::vector<TakenOption> options;  // of `muster run`; the source is the file's key
  EnvironmentMap environment;        // set over what workers inherit
  std::vector<std::string> notes;    // worth a line each
};

}  // namespace muster::launcher
