// What a token takes of a device: beside what that could do (advice/device_table.h), the share that
// a training reaches, its MFU.
//
// Threads: pure.
#pragma once

#include "muster/decoder_config.h"

namespace muster::train {

// Forward and backward: 6 for each parameter, and the products of causal attention.
// Source: llm.c, llmc/mfu.h: 6 N + 6 L C T
double OperationsPerToken(const DecoderConfig& model);

}  // namespace muster::train
