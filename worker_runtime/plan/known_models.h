// Models that people know by name.
//
// Threads: pure.
// Source:  the models' published configurations (config.json of each); Radford et al. 2019; Touvron
//          et al. 2023; Grattafiori et al. 2024; IBM Granite 3.0, 2024; Qwen 2.5 and 3 reports.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/decoder_config.h"

namespace muster::plan {

// Finds a model by its name, also behind an owner as in "ibm/granite-7b-base". Errors:
// kInvalidArgument: no such name (with the nearest one).
absl::StatusOr<DecoderConfig> FindKnownModel(absl::string_view name);
std::vector<std::string> KnownModelNames();

// "llama-3.2-1b"; of nobody's sizes "GPT", if the parts are GPT-2's, else "decoder". Contexts and
// vocabularies are the user's: they make no other model.
std::string NameOf(const DecoderConfig& model);
// What two models of the same shapes may differ in, as a checkpoint keeps it; empty for a GPT-2.
// "key heads 8, head size 64, epsilon 1e-05, rotary 500000 llama3 32 1 4 8192"
std::string DescribeParts(const DecoderConfig& model);
// "32 heads", or "32 heads with 8 of keys".
std::string DescribeHeads(const DecoderConfig& model);

}  // namespace muster::plan
