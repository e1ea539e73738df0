// `muster run --ilab`: the section `train` of a configuration file of InstructLab -> the options
// that `ilab model train` gives to torchrun. Every key of proto/dialects/instructlab.h is taken or
// left to the program; others are refused.
//
// Differs in: a key that is not known is refused, where InstructLab passes over it in silence.
//
// Source:  instructlab-training 0.12, config.py (TorchrunArgs).
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/config/launch_config.h"

namespace muster::launcher {

// `text` is the file's that `source` names: "--ilab=i.yaml". A note names the keys that are left to
// the program.
//
// Errors: kInvalidArgument naming the file, the line, the key, its value and what was expected; for
// an unknown key the nearest one.
absl::StatusOr<LaunchConfig> LaunchOfInstructLab(const std::string& text, std::string source);

}  // namespace muster::launcher
