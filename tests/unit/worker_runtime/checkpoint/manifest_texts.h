// Texts of training.json as a program or a person might leave them, with a checksum that fits.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "proto/io/sha256.h"

namespace muster::checkpoint {

// The rule of the format: the keys are sorted in what is summed.
inline std::string WithChecksum(nlohmann::json json) {
  json.erase("sha256");
  json["sha256"] = Sha256().Add(json.dump()).Finish();
  return json.dump() + "\n";
}

// The parameter "w" in two pieces, "b" beside the first one, and a moment in one, of two files.
inline nlohmann::json ManifestOfTwoFiles() {
  return nlohmann::json::parse(R"({
    "format": "muster.checkpoint", "version": 2, "step": 7,
    "plan": {}, "counters": {}, "metadata": {}, "model_id": ")" +
                               std::string(64, 'a') + R"(",
    "files": [{"name": "slices_00000.safetensors", "bytes": 1000},
              {"name": "slices_00001.safetensors", "bytes": 600}],
    "digests": {"block_bytes": 4194304, "count": 4, "sha256": ")" +
                               std::string(64, 'b') + R"("},
    "model": {"w": {"dtype": "F32", "shape": [2, 3], "pieces": [[0, 200, 4], [1, 100, 2]]},
              "b": {"dtype": "BF16", "shape": [5], "pieces": [[0, 216, 5]]}},
    "optimizer": {"first_moment.w": {"dtype": "F32", "shape": [2, 3], "pieces": [[0, 232, 6]]}}})");
}

}  // namespace muster::checkpoint
