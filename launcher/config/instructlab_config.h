// `muster run --ilab`: the section `train` of a configuration file of InstructLab -> the options
// that `ilab model train` gives to torchrun. Every key is known: taken, left to the program, or
// refused.
//
// Two dialects: InstructLab's own (nproc_per_node), and the one of `num_gpus`, `distributed` and
// the blocks `deepspeed` and `model`.
//
// Differs in: a key that is not known is refused, where InstructLab passes over it in silence.
//
// Source:  InstructLab 0.26, configuration.py (the model of `train`); instructlab-training 0.12,
//          config.py (TorchrunArgs).
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/config/launch_config.h"

namespace muster::launcher {

// `text` is the file's. A note names the keys that are left to the program.
//
// Errors: kInvalidArgument naming the key, its value and what was expected; for an unknown key the
// nearest one.
absl::StatusOr<LaunchConfig> ReadInstructLabConfig(const std::string& text);

}  // namespace muster::launcher
