// Which of cuDNN's engines runs a graph, and what it needs for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/cuda/cudnn_descriptor.h"
#include "worker_runtime/cuda/cudnn_graph.h"

namespace muster::cudnn {

// A GPU that need not be there, as cuDNN describes one in JSON.
//
// Errors: kInternal: cuDNN's words, as for a field that is missing.
absl::StatusOr<Descriptor> DescribeGpu(const Library& library, absl::string_view json);

// What a graph is to run on: the GPU of a handle, or one that is described (whose engines can be
// found, and no more).
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* described = nullptr;
};

struct Engine {
  Descriptor configuration;
  int64_t index = -1;
  int64_t workspace_bytes = 0;
  bool same_bits = true;  // does not say of itself that it is not deterministic
};

struct EngineNeeds {
  int64_t workspace_bytes_max = 0;
  bool same_bits = false;
};

// Those that have the graph and what is needed, the best first.
//
// Errors: kUnimplemented: there are none, and why not. kInternal: cuDNN's words.
absl::StatusOr<std::vector<Engine>> FindEngines(const Library& library, const OperationGraph& graph,
                                                const Target& target, EngineNeeds needs);

struct ExecutionPlan {
  Descriptor plan;
  int64_t workspace_bytes = 0;
};

// Makes a plan of the first engine that can be made ready, within the same workspace. Compiles
// kernels.
//
// Errors: kUnimplemented: none can, and what the last said.
absl::StatusOr<ExecutionPlan> MakePlan(const Library& library, absl::Span<const Engine> engines,
                                       cudnnHandle_t handle, int64_t workspace_bytes_max);

// What is read and written under the graph's ids.
struct Binding {
  int64_t uid;
  void* pointer;
};

absl::StatusOr<Descriptor> Arguments(const Library& library, absl::Span<const Binding> bindings,
                                     void* workspace);
// Puts it on the stream of the handle.
absl::Status Execute(const Library& library, cudnnHandle_t handle, const ExecutionPlan& plan,
                     const Descriptor& arguments);

}  // namespace muster::cudnn
