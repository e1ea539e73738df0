// What the two forms of training.json share: the text as JSON whose bytes are those that were
// written, and the parts that both have.
//
// Threads: pure.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/manifest.h"

namespace muster::checkpoint {

// The key of the checksum of all else.
inline constexpr char kChecksum[] = "sha256";

// The checksum of `json`, however its file was laid out.
std::string ChecksumOf(nlohmann::json json);

// Errors: kInvalidArgument: no object, a key twice, values too deep in one another, or another
//         checksum than it has. One without a checksum passes.
absl::StatusOr<nlohmann::json> ReadChecked(absl::string_view text);

// Errors: kInvalidArgument: there is no such object, or a value in it is no text.
absl::StatusOr<std::map<std::string, std::string>> TextsAt(const nlohmann::json& json,
                                                           const char* key);
// Those that may be missing are empty then.
absl::StatusOr<std::map<std::string, std::string>> TextsIfAny(const nlohmann::json& json,
                                                              const char* key);

// A whole number of 0 or more. Errors: kInvalidArgument: names the key.
absl::StatusOr<int64_t> CountAt(const nlohmann::json& json, const char* key);

// Step, plan, counters, metadata and writer.
absl::StatusOr<TrainingState> ReadState(const nlohmann::json& json);

}  // namespace muster::checkpoint
