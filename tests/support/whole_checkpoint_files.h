// Checkpoints of format version 1 ("muster.whole_checkpoint"), as programs of before there were
// slices wrote them: today's programs read them, and no longer write them.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::testing {

struct WholeCheckpointFiles {
  checkpoint::TrainingState state;  // but for its model_id, of which that format knows nothing
  std::vector<checkpoint::NamedArray> model;
  std::vector<checkpoint::NamedArray> optimizer;
  // The oldest programs wrote none: neither of the arrays nor of training.json itself.
  bool has_checksums = true;
};

// Writes `directory`/step_<number>/, and returns that path. A test cannot go on when this fails, so
// it ends it.
std::string WriteWholeCheckpoint(const std::string& directory, const WholeCheckpointFiles& files);

}  // namespace muster::testing
