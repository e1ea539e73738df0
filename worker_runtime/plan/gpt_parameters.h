// What is known of a GPT before it takes any memory.
//
// Threads: pure.
// Source:  Radford et al., "Language Models are Unsupervised Multitask Learners", 2019
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/decoder_config.h"

namespace muster::plan {

// Floating point operations of the forward and backward pass per token: 6 for each parameter that
// is multiplied (all but the positions), and 12 * layers * width * context for attention, which is
// counted as if nothing were masked.
//
// Source: Chowdhery et al., "PaLM", 2022, appendix B
double GptFlopsPerToken(const DecoderConfig& config);

// The sizes published under a name: gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m.
//
// Errors: kInvalidArgument: no such name (with the nearest one).
absl::StatusOr<DecoderConfig> NamedGpt(absl::string_view name);
std::vector<std::string> NamedGpts();

}  // namespace muster::plan
