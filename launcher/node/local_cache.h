// --local_cache: what PyTorch, Triton and the driver compile while a program runs is kept below a
// folder of this node's own disk, for its later attempts and jobs. Usually most of it lies in the
// home, which the nodes of a cluster share.
//
// Source: torch 2.15: torch/_inductor/runtime/cache_dir_utils.py, torch/utils/cpp_extension.py
//         (get_default_build_root's caller), aten/src/ATen/native/cuda/jit_utils.cpp; triton 3.9:
//         triton/knobs.py (cache_knobs); CUDA C++ Programming Guide, "CUDA Environment Variables".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/spec/worker_env.h"

namespace muster::launcher {

// Variables of the workers, each a folder below `folder`; none that `environment` has. Pure.
EnvironmentMap LocalCacheVariables(const std::string& folder, const EnvironmentMap& environment);

// Makes the folders of `variables`, for this user alone.
//
// Errors:  kInvalidArgument: one cannot be made, cannot be written, or belongs to somebody else,
//          whose code the workers would run.
// Threads: safe; blocks for as long as the file system does.
absl::Status MakeLocalCache(const EnvironmentMap& variables);

}  // namespace muster::launcher
