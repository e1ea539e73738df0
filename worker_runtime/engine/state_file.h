// The engine's state as arrays of a checkpoint, by parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/parameter.h"
#include "muster/update.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/moment_exchange.h"
#include "worker_runtime/engine/rank_state.h"

namespace muster::engine {

// Arrays that refer to the memory of the parameters and of `moments`.
std::vector<checkpoint::NamedArray> ParameterArrays(const ParameterStore& store);
std::vector<checkpoint::NamedArray> MomentArrays(const ParameterStore& store,
                                                 const RankState& state, const UpdateRule& rule,
                                                 const WholeMoments& moments);

// Whether `from` holds the parameters of `store`, no more and no fewer, and of each that is not frozen
// the moments that `rule` keeps, in their shapes and type.
//
// Errors: kInvalidArgument: names the first that differs.
absl::Status CheckSameModel(const ParameterStore& store, const UpdateRule& rule,
                            const checkpoint::WholeCheckpoint& from, const std::string& path);

// Fills parameters and moments, and calls `progress` after each parameter's.
//
// Errors: CheckSameModel's, which leave them as they were; SafetensorsFile::Read's.
absl::Status ReadState(const checkpoint::WholeCheckpoint& from, const std::string& path,
                       const ParameterStore& store, const RankState& state, const UpdateRule& rule,
                       const WholeMoments& moments, const checkpoint::Progress& progress);

}  // namespace muster::engine
