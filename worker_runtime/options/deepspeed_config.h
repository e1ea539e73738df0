// A configuration file of DeepSpeed as settings of muster's options.
//
// Source:  DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py, runtime/precision_config.py,
//         runtime/lr_schedules.py; "auto" as transformers' integrations/deepspeed.py fills it.
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/options/config_reading.h"

namespace muster::plan {

struct ConfigFileText {
  std::string name;  // for messages
  std::string text;
  int64_t hidden_size = 0;  // of the model, for "auto"
};

// Errors: kInvalidArgument naming file, line, path, value and what was expected, or the reason and
//         what works instead.
absl::StatusOr<ConfigContents> ReadDeepSpeedConfig(const ConfigFileText& file, ConfigCompat compat);

}  // namespace muster::plan
