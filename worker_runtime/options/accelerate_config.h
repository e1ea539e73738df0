// A configuration file of Hugging Face Accelerate as settings of muster's options: what it says of
// training. What it says of launching is `muster run --config_file`'s. The table of keys is
// proto/dialects/accelerate.h.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/options/config_reading.h"
#include "worker_runtime/options/deepspeed_config.h"

namespace muster::plan {

// Besides its settings, the file of DeepSpeed that it names; empty: none.
struct AccelerateContents {
  ConfigContents contents;
  std::string deepspeed_file;
  std::string deepspeed_source;  // where it is named
};

// Errors: as ReadDeepSpeedConfig.
absl::StatusOr<AccelerateContents> ReadAccelerateConfig(const ConfigFileText& file,
                                                        ConfigCompat compat);

}  // namespace muster::plan
