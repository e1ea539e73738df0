// The keys of a configuration file of InstructLab, in both of its dialects: InstructLab's own
// (nproc_per_node), and the one of `num_gpus`, `distributed` and the blocks `deepspeed` and
// `model`. Read by launcher/config/instructlab_config.h and
// worker_runtime/options/instructlab_config.h.
//
// Source:  InstructLab 0.26, configuration.py (the model of `train`).
// Threads: pure.
#pragma once

#include "absl/types/span.h"
#include "proto/dialects/config_key.h"

namespace muster {

// Each key once, by its path: "train.deepspeed.zero_stage".
absl::Span<const ConfigKey> InstructLabKeys();

}  // namespace muster
