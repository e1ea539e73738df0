#include "worker_runtime/engine/state_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"

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

const Tensor& MomentOf(const WholeMoments& moments, size_t number) {
  return number == 0 ? moments.first : moments.second;
}

std::vector<int64_t> Sizes(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
  return sizes;
}

std::string Describe(DType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(ToString(dtype), " [", absl::StrJoin(shape, ", "), "]");
}

void Append(const ParameterStore& store, const RankState& state, const Tensor& moments,
            absl::string_view prefix, std::vector<checkpoint::NamedArray>& out) {
  for (const auto& parameter : store.parameters()) {
    if (parameter->frozen()) continue;
    out.push_back({.name = absl::StrCat(prefix, parameter->name()),
                   .shape = Sizes(parameter->shape()),
                   .elements = BufferOfTensor(state.Of(*parameter, moments, 0))});
  }
}

}  // namespace

std::vector<checkpoint::NamedArray> ParameterArrays(const ParameterStore& store) {
  std::vector<checkpoint::NamedArray> arrays;
  for (const auto& parameter : store.parameters()) {
    arrays.push_back({.name = parameter->name(),
                      .shape = Sizes(parameter->shape()),
                      .elements = BufferOfTensor(parameter->value())});
  }
  return arrays;
}

std::vector<checkpoint::NamedArray> MomentArrays(const ParameterStore& store,
                                                 const RankState& state, const UpdateRule& rule,
                                                 const WholeMoments& moments) {
  std::vector<checkpoint::NamedArray> arrays;
  const std::vector<std::string> prefixes = MomentPrefixes(rule);
  for (size_t i = 0; i < prefixes.size(); ++i) {
    Append(store, state, MomentOf(moments, i), prefixes[i], arrays);
  }
  return arrays;
}

absl::Status CheckSameModel(const ParameterStore& store, const UpdateRule& rule,
                            const checkpoint::WholeCheckpoint& from, const std::string& path) {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a checkpoint of another model: ", what...));
  };
  for (const auto& parameter : store.parameters()) {
    const std::string wanted = Describe(parameter->dtype(), Sizes(parameter->shape()));
    std::vector<std::string> prefixes;
    if (!parameter->frozen()) prefixes = MomentPrefixes(rule);
    prefixes.insert(prefixes.begin(), "");
    for (const std::string& prefix : prefixes) {
      const auto& arrays = prefix.empty() ? from.model.arrays() : from.optimizer.arrays();
      const std::string name = absl::StrCat(prefix, parameter->name());
      const auto found = arrays.find(name);
      if (found == arrays.end() && !prefix.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, " cannot be continued: it has no ", name, ", which ", ToString(rule.kind),
            " needs; was ", parameter->name(), " frozen there, or trained by another optimizer?"));
      }
      if (found == arrays.end()) return refuse("it has no ", name);
      const std::string there = Describe(found->second.dtype, found->second.shape);
      if (there != wanted) return refuse(name, " is ", there, " there and ", wanted, " here");
    }
  }
  for (const auto& [name, info] : from.model.arrays()) {
    if (store.Find(name) == nullptr) return refuse("it has ", name, ", this model has not");
  }
  return absl::OkStatus();
}

absl::Status ReadState(const checkpoint::WholeCheckpoint& from, const std::string& path,
                       const ParameterStore& store, const RankState& state, const UpdateRule& rule,
                       const WholeMoments& moments, const checkpoint::Progress& progress) {
  MUSTER_RETURN_IF_ERROR(CheckSameModel(store, rule, from, path));
  const std::vector<std::string> prefixes = MomentPrefixes(rule);
  for (const auto& parameter : store.parameters()) {
    const std::string& name = parameter->name();
    MUSTER_RETURN_IF_ERROR(from.model.Read(name, BufferOfTensor(parameter->value())));
    for (size_t i = 0; i < prefixes.size() && !parameter->frozen(); ++i) {
      const Tensor moment = state.Of(*parameter, MomentOf(moments, i), 0);
      MUSTER_RETURN_IF_ERROR(
          from.optimizer.Read(absl::StrCat(prefixes[i], name), BufferOfTensor(moment)));
    }
    if (progress != nullptr) progress();
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
