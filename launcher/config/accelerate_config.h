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
#include "proto/config/python_yaml.h"

namespace muster::launcher {

inline constexpr char kNoSageMaker[] = "SageMaker is not served";

// What else decides.
struct AccelerateSurroundings {
  EnvironmentMap inherited;   // the launcher's own
  std::string directory;      // likewise
  int num_cores = 1;          // of this machine; hardware threads of one core count once
  bool asks_for_cpu = false;  // by an option, which leaves `use_cpu` of the file as it is
};

// A file, YAML or JSON, with what older versions of Accelerate wrote otherwise (`fp16`,
// `dynamo_backend`) as it is written today.
//
// Errors: those of ReadPythonYaml.
absl::StatusOr<PythonConfig> ReadAccelerateFile(const std::string& text);

// `text` is a file's.
//
// Errors: kInvalidArgument naming the line, the key, its value and what was expected; for an
// unknown key the nearest one. What was put into a file that has been read has no line.
absl::StatusOr<LaunchConfig> ReadAccelerateConfig(const std::string& text,
                                                  const AccelerateSurroundings& around);

// The same of what ReadAccelerateFile gave. Notes that begin with a line are of the file.
absl::StatusOr<LaunchConfig> ReadAccelerateConfig(PythonConfig config,
                                                  const AccelerateSurroundings& around);

}  // namespace muster::launcher
