#include "worker_runtime/cuda/cudnn_engines.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::cudnn {
namespace {

constexpr Attribute<char> kGpuJson = {CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, "description"};

constexpr Attribute<Descriptor> kHeuristicsGraph = {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, "graph"};
constexpr Attribute<cudnnBackendHeurMode_t> kHeuristicsMode = {CUDNN_ATTR_ENGINEHEUR_MODE, "mode"};
constexpr Attribute<Descriptor> kHeuristicsGpu = {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, "GPU"};

constexpr Attribute<int64_t> kEngineIndex = {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, "index of an engine"};
constexpr Attribute<int64_t> kConfigurationWorkspace = {CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                                        "workspace of an engine"};

constexpr Attribute<Descriptor> kPlanConfiguration = {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                      "engine"};
constexpr Attribute<cudnnHandle_t> kPlanHandle = {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, "handle"};
constexpr Attribute<int64_t> kPlanWorkspace = {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                               "workspace of a plan"};

constexpr Attribute<int64_t> kPackUids = {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, "unique ids"};
constexpr Attribute<void*> kPackPointers = {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, "pointers"};
constexpr Attribute<void*> kPackWorkspace = {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, "workspace"};

absl::StatusOr<Descriptor> Empty(const Library& library, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  MUSTER_RETURN_IF_ERROR(library.ToStatus(library.create_descriptor(type, &raw), "a descriptor"));
  return Descriptor(library, raw);
}

// Configurations of engines, the best first; none if the heuristic refuses the graph.
absl::StatusOr<std::vector<Descriptor>> Configurations(const Library& library,
                                                       const Descriptor& heuristics) {
  const auto read = [&](int64_t wanted, int64_t* count, void* into) {
    return library.ToStatus(
        library.get_attribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, wanted, count, into),
        "reading the engines of a graph");
  };
  int64_t count = 0;
  MUSTER_RETURN_IF_ERROR(read(0, &count, nullptr));
  std::vector<Descriptor> all;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    MUSTER_ASSIGN_OR_RETURN(Descriptor one, Empty(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(one.raw());
    all.push_back(std::move(one));
  }
  if (count == 0) return all;
  MUSTER_RETURN_IF_ERROR(read(count, &count, raw.data()));
  all.resize(std::min(all.size(), static_cast<size_t>(count)));
  return all;
}

absl::StatusOr<Engine> EngineOf(const Library& library, Descriptor configuration) {
  Engine engine;
  MUSTER_ASSIGN_OR_RETURN(engine.workspace_bytes,
                          Get(library, configuration, kConfigurationWorkspace));
  MUSTER_ASSIGN_OR_RETURN(const Descriptor of, Empty(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
  int64_t count = 0;
  cudnnBackendDescriptor_t raw = of.raw();
  MUSTER_RETURN_IF_ERROR(
      library.ToStatus(library.get_attribute(configuration.raw(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
                       "reading an engine"));
  MUSTER_ASSIGN_OR_RETURN(engine.index, Get(library, of, kEngineIndex));
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  MUSTER_RETURN_IF_ERROR(library.ToStatus(
      library.get_attribute(of.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            notes.size(), &count, notes.data()),
      "reading the numerical notes of an engine"));
  for (int64_t i = 0; i < std::min<int64_t>(count, notes.size()); ++i) {
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) engine.same_bits = false;
  }
  engine.configuration = std::move(configuration);
  return engine;
}

}  // namespace

absl::StatusOr<Descriptor> DescribeGpu(const Library& library, absl::string_view json) {
  return DescriptorBuilder(library, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "a GPU")
      .SetAll(kGpuJson, absl::MakeConstSpan(json.data(), json.size()))
      .Finish();
}

absl::StatusOr<std::vector<Engine>> FindEngines(const Library& library, const OperationGraph& graph,
                                                const Target& target, EngineNeeds needs) {
  std::vector<Engine> engines;
  std::string why = ": it has no engine";
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    DescriptorBuilder builder(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "engines");
    builder.Set(kHeuristicsGraph, graph.graph).Set(kHeuristicsMode, mode);
    if (target.described != nullptr) builder.Set(kHeuristicsGpu, *target.described);
    const absl::StatusOr<Descriptor> heuristics = builder.Finish();
    if (!heuristics.ok()) {
      why = absl::StrCat(": ", heuristics.status().message());
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(std::vector<Descriptor> all, Configurations(library, *heuristics));
    for (Descriptor& configuration : all) {
      MUSTER_ASSIGN_OR_RETURN(Engine engine, EngineOf(library, std::move(configuration)));
      if (engine.workspace_bytes > needs.workspace_bytes_max) {
        why = absl::StrCat(": engine ", engine.index, " works in ", engine.workspace_bytes,
                           " bytes, and ", needs.workspace_bytes_max, " are planned");
      } else if (needs.same_bits && !engine.same_bits) {
        why = absl::StrCat(": engine ", engine.index, " is not deterministic");
      } else {
        engines.push_back(std::move(engine));
      }
    }
  }
  if (!engines.empty()) return engines;
  return absl::UnimplementedError(absl::StrCat("cuDNN ", library.version(), why));
}

absl::StatusOr<ExecutionPlan> MakePlan(const Library& library, absl::Span<const Engine> engines,
                                       cudnnHandle_t handle, int64_t workspace_bytes_max) {
  std::string why = "there is no engine";
  for (const Engine& engine : engines) {
    absl::StatusOr<Descriptor> made =
        DescriptorBuilder(library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                          absl::StrCat("plan by engine ", engine.index))
            .Set(kPlanHandle, handle)
            .Set(kPlanConfiguration, engine.configuration)
            .Finish();
    if (!made.ok()) {
      why = std::string(made.status().message());
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(const int64_t workspace, Get(library, *made, kPlanWorkspace));
    if (workspace <= workspace_bytes_max) return ExecutionPlan{*std::move(made), workspace};
    why = absl::StrCat("engine ", engine.index, " works in ", workspace, " bytes, and ",
                       workspace_bytes_max, " are planned");
  }
  return absl::UnimplementedError(absl::StrCat("cuDNN ", library.version(), ": ", why));
}

absl::StatusOr<Descriptor> Arguments(const Library& library, absl::Span<const Binding> bindings,
                                     void* workspace) {
  std::vector<int64_t> uids;
  std::vector<void*> pointers;
  for (const Binding& binding : bindings) {
    uids.push_back(binding.uid);
    pointers.push_back(binding.pointer);
  }
  return DescriptorBuilder(library, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "arguments of a plan")
      .SetAll(kPackUids, uids)
      .SetAll(kPackPointers, pointers)
      .Set(kPackWorkspace, workspace)
      .Finish();
}

absl::Status Execute(const Library& library, cudnnHandle_t handle, const ExecutionPlan& plan,
                     const Descriptor& arguments) {
  return library.ToStatus(library.execute(handle, plan.plan.raw(), arguments.raw()),
                          "running a plan");
}

}  // namespace muster::cudnn
