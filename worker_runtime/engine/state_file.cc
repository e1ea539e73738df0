#include "worker_runtime/engine/state_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"

namespace muster::engine {
namespace {

// What comes before a parameter's name: another rule's moments have other names.
std::vector<std::string> MomentPrefixes(const UpdateRule& rule) {
  switch (NumMoments(rule)) {
    case 0:
      return {};
    case 1:
      return {"momentum."};
    default:
      return {"first_moment.", "second_moment."};
  }
}

std::string Describe(DType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(ToString(dtype), " [", absl::StrJoin(shape, ", "), "]");
}

std::vector<StateArray> Values(const ParameterStore& store, bool kept_elsewhere) {
  std::vector<StateArray> arrays;
  for (const auto& parameter : store.parameters()) {
    if (parameter->kept_elsewhere() != kept_elsewhere) continue;
    arrays.push_back({StateKind::kValue, parameter.get(), parameter->name()});
  }
  return arrays;
}

template <typename... What>
absl::Status OtherModel(const std::string& name, const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is of another model: ", what...));
}

absl::Status CheckHasAll(const ParameterStore& store, const ArrayTable& model,
                         const std::string& from) {
  for (const auto& [name, info] : model) {
    if (store.Find(name) == nullptr) {
      return OtherModel(from, "it has ", name, ", this model does not");
    }
  }
  return absl::OkStatus();
}

// Whether an array that was found is as `parameter` needs it.
absl::Status CheckArray(const std::string& from, const std::string& name,
                        const checkpoint::SlicedArray& found, const Parameter& parameter,
                        DType dtype, bool is_file) {
  const bool is_wider =
      is_file && dtype == DType::kF32 && SizeOf(found.dtype) == 2;  // bf16 and f16
  const checkpoint::SlicedArray whole = WholeArrayOf(parameter, is_wider ? found.dtype : dtype);
  const std::string wanted = Describe(whole.dtype, whole.shape);
  const std::string there = Describe(found.dtype, found.shape);
  if (there != wanted) {
    return OtherModel(from, name, " is ", there, " there and ", wanted, " here");
  }
  // What is read may be put together of any parts; what ranks hand on must be such parts.
  if (is_file || found.parts == whole.parts) return absl::OkStatus();
  const auto ranks = [](const checkpoint::SlicedArray& array) {
    return array.parts ? array.parts->count : 1;
  };
  return absl::InvalidArgumentError(absl::StrCat(
      from, " is of ", ranks(found), " tensor ranks, and here are ", ranks(whole),
      ": what ranks hold in memory goes on with as many; a checkpoint goes on with any number"));
}

}  // namespace

checkpoint::SlicedArray WholeArrayOf(const Parameter& parameter, DType dtype) {
  const auto sizes = parameter.spec().shape.sizes();
  checkpoint::SlicedArray array = {.dtype = dtype, .shape = {sizes.begin(), sizes.end()}};
  if (!parameter.part().is_cut()) return array;
  ParameterCut cut = *parameter.spec().cut;
  if (cut.sections.empty()) cut.sections = {array.shape[cut.axis]};
  array.parts = {.cut = std::move(cut), .count = parameter.store().tensor_ranks().size};
  return array;
}

std::vector<StateArray> ModelArrays(const ParameterStore& store) { return Values(store, false); }

std::vector<StateArray> BaseArrays(const ParameterStore& store) { return Values(store, true); }

std::vector<StateArray> OptimizerArrays(const ParameterStore& store, const UpdateRule& rule) {
  std::vector<StateArray> arrays;
  const std::vector<std::string> prefixes = MomentPrefixes(rule);
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const StateKind kind = i == 0 ? StateKind::kFirstMoment : StateKind::kSecondMoment;
    for (const auto& parameter : store.parameters()) {
      if (parameter->frozen()) continue;
      arrays.push_back({kind, parameter.get(), absl::StrCat(prefixes[i], parameter->name())});
    }
  }
  return arrays;
}

CheckpointArrays AllArrays(const ParameterStore& store, const UpdateRule& rule) {
  return {.model = ModelArrays(store), .optimizer = OptimizerArrays(store, rule)};
}

std::vector<checkpoint::ArrayToWrite> ToWrite(const CheckpointArrays& arrays, DType dtype) {
  std::vector<checkpoint::ArrayToWrite> all;
  for (size_t i = 0; i < arrays.size(); ++i) {
    checkpoint::SlicedArray whole = WholeArrayOf(*arrays[i].parameter, dtype);
    all.push_back({.name = arrays[i].name,
                   .dtype = dtype,
                   .shape = std::move(whole.shape),
                   .is_of_model = i < arrays.model.size(),
                   .parts = std::move(whole.parts)});
  }
  return all;
}

absl::Status CheckSameModel(const ParameterStore& store, DType dtype, const UpdateRule& rule,
                            const StateTable& from) {
  for (const auto& [name, info] : from.model) {
    const Parameter* const here = store.Find(name);
    if (here == nullptr || !here->kept_elsewhere()) continue;
    return OtherModel(from.name, "it has ", name,
                      ", as a whole model does; here that is the model's beneath the adapters, and "
                      "their checkpoints hold nothing but them");
  }
  for (const auto& parameter : store.parameters()) {
    if (parameter->kept_elsewhere()) continue;
    std::vector<std::string> prefixes;
    if (!parameter->frozen()) prefixes = MomentPrefixes(rule);
    prefixes.insert(prefixes.begin(), "");
    for (const std::string& prefix : prefixes) {
      const auto& arrays = prefix.empty() ? from.model : from.optimizer;
      const std::string name = absl::StrCat(prefix, parameter->name());
      const auto found = arrays.find(name);
      if (found == arrays.end() && !prefix.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            from.name, " cannot be continued: it has no ", name, ", which ", ToString(rule.kind),
            " needs; was ", parameter->name(), " frozen there, or trained by another optimizer?"));
      }
      if (found == arrays.end()) return OtherModel(from.name, "it has no ", name);
      MUSTER_RETURN_IF_ERROR(
          CheckArray(from.name, name, found->second, *parameter, dtype, from.is_file));
    }
  }
  return CheckHasAll(store, from.model, from.name);
}

absl::Status CheckIsBase(const ParameterStore& store, DType dtype, const ArrayTable& model,
                         const std::string& name) {
  for (const StateArray& array : BaseArrays(store)) {
    const auto found = model.find(array.name);
    if (found == model.end()) return OtherModel(name, "it has no ", array.name);
    MUSTER_RETURN_IF_ERROR(
        CheckArray(name, array.name, found->second, *array.parameter, dtype, true));
  }
  return CheckHasAll(store, model, name);
}

absl::Status CheckHolds(const std::vector<StateArray>& arrays, const ArrayTable& model,
                        const std::string& name) {
  for (const StateArray& array : arrays) {
    const auto found = model.find(array.name);
    if (found == model.end()) return OtherModel(name, "it has no ", array.name);
    MUSTER_RETURN_IF_ERROR(CheckArray(name, array.name, found->second, *array.parameter,
                                      found->second.dtype, /*is_file=*/true));
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
