// The keys of a configuration file of DeepSpeed. Read by worker_runtime/options/deepspeed_config.h.
// A launch needs none of them: the program that is launched reads the file.
//
// Source:  DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py, runtime/precision_config.py,
//          runtime/lr_schedules.py.
// Threads: pure.
#pragma once

#include "absl/types/span.h"
#include "proto/dialects/config_key.h"

namespace muster {

// Each key once, by its path: "zero_optimization.stage".
absl::Span<const ConfigKey> DeepSpeedKeys();

}  // namespace muster
