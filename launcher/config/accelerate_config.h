// `muster run --config_file`: a configuration file of Hugging Face Accelerate -> the options and
// the variables that `accelerate launch` makes of it. Every key of proto/dialects/accelerate.h is
// taken or refused by name. Hosts that Accelerate would have `deepspeed` or mpirun start are those
// of --hostfile.
//
// Differs in: a port of 29500 is not assumed on one node; FP8, TPUs and SageMaker are refused.
//
// Source:  accelerate 1.15, utils/launch.py (prepare_simple_launcher_cmd_env,
//          prepare_multi_gpu_env, prepare_deepspeed_cmd_env), commands/launch.py.
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/config/launch_config.h"
#include "proto/base/environment.h"

namespace muster::launcher {

inline constexpr char kNoSageMaker[] = "SageMaker is not served";

// What else decides.
struct AccelerateSurroundings {
  EnvironmentMap inherited;   // the launcher's own
  std::string directory;      // likewise
  int num_cores = 1;          // of this machine; hardware threads of one core count once
  bool asks_for_cpu = false;  // by an option, which leaves `use_cpu` of the file as it is
};

// What is in a file, YAML or JSON, with what older versions of Accelerate wrote otherwise (`fp16`,
// `dynamo_backend`) as it is written today. `source` names it: "--config_file=a.yaml".
//
// Errors: those of ReadYamlTree, behind `source`; values in values of blocks.
absl::StatusOr<ConfigFile> ReadAccelerateFile(const std::string& text, std::string source);

// What such a file says to `muster run`. What was put into it after it was read has no line.
//
// Errors: kInvalidArgument naming the file, the line, the key, its value and what was expected; for
// an unknown key the nearest one.
absl::StatusOr<LaunchConfig> LaunchOfAccelerate(ConfigFile file,
                                                const AccelerateSurroundings& around);

}  // namespace muster::launcher
