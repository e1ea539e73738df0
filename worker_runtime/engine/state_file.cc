#include "worker_runtime/engine/state_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster::engine {
namespace {

constexpr char kFirstMoment[] = "first_moment.";
constexpr char kSecondMoment[] = "second_moment.";

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
                                                 const RankState& state,
                                                 const WholeMoments& moments) {
  std::vector<checkpoint::NamedArray> arrays;
  Append(store, state, moments.first, kFirstMoment, arrays);
  Append(store, state, moments.second, kSecondMoment, arrays);
  return arrays;
}

absl::Status CheckSameModel(const ParameterStore& store, const checkpoint::WholeCheckpoint& from,
                            const std::string& path) {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a checkpoint of another model: ", what...));
  };
  for (const auto& parameter : store.parameters()) {
    const std::string wanted = Describe(parameter->dtype(), Sizes(parameter->shape()));
    for (const absl::string_view prefix : {"", kFirstMoment, kSecondMoment}) {
      const auto& arrays = prefix.empty() ? from.model.arrays() : from.optimizer.arrays();
      const std::string name = absl::StrCat(prefix, parameter->name());
      const auto found = arrays.find(name);
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
                       const ParameterStore& store, const RankState& state,
                       const WholeMoments& moments, const checkpoint::Progress& progress) {
  MUSTER_RETURN_IF_ERROR(CheckSameModel(store, from, path));
  for (const auto& parameter : store.parameters()) {
    const std::string& name = parameter->name();
    const auto moment = [&](absl::string_view prefix, const Tensor& whole) {
      return from.optimizer.Read(absl::StrCat(prefix, name),
                                 BufferOfTensor(state.Of(*parameter, whole, 0)));
    };
    MUSTER_RETURN_IF_ERROR(from.model.Read(name, BufferOfTensor(parameter->value())));
    MUSTER_RETURN_IF_ERROR(moment(kFirstMoment, moments.first));
    MUSTER_RETURN_IF_ERROR(moment(kSecondMoment, moments.second));
    if (progress != nullptr) progress();
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
