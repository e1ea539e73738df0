// JSON as people write it, by the rules of hjson, with which DeepSpeed reads its files: comments
// (//, # and /* */), commas left out or behind the last member, keys and texts without quotes or in
// single ones, no braces around it all, a byte order mark.
//
// Source:  hjson 3.1, decoder.py; deepspeed 0.19, runtime/config.py (no key twice).
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/config/config_tree.h"

namespace muster {

// Errors: kInvalidArgument with the line: not of this form, a key twice in a map, values nested
//         too deep, more than a megabyte; nothing at all.
absl::StatusOr<ConfigNode> ReadJson(const std::string& text);

}  // namespace muster
