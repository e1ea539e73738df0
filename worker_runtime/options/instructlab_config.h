// The section `train` of a configuration file of InstructLab as settings of muster's options. The
// table of keys is proto/dialects/instructlab.h.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/options/config_reading.h"
#include "worker_runtime/options/deepspeed_config.h"

namespace muster::plan {

struct InstructLabContents {
  ConfigContents contents;
  std::string deepspeed_file;    // that it names; empty: none
  std::string deepspeed_source;  // where it is named
  // The stage that it names, which must be that of the file; empty: none.
  std::string zero_stage;
  std::string stage_source;
};

// Errors: as ReadDeepSpeedConfig.
absl::StatusOr<InstructLabContents> ReadInstructLabConfig(const ConfigFileText& file,
                                                          ConfigCompat compat);

}  // namespace muster::plan
