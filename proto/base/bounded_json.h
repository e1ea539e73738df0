// JSON that comes from outside: from a worker, a file, another program.
//
// nlohmann_json parses without recursion, but copies, compares and writes what it has parsed with
// one call of a function for each level: what is nested half a million deep ends the process at its
// stack's end.
#pragma once

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace muster {

// Far more than anything that we read has.
inline constexpr int kJsonDepthMax = 64;

// `text` parsed; discarded (is_discarded()) if it is not JSON, or is nested deeper than
// kJsonDepthMax. Its caller bounds its length.
//
// Threads: pure.
nlohmann::json ParseJsonFromOutside(absl::string_view text);

}  // namespace muster
