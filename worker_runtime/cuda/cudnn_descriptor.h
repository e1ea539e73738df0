// Descriptors of cuDNN's graphs: what they are made of, with types, and failures that name the
// attribute.
//
//   MUSTER_ASSIGN_OR_RETURN(
//       const Descriptor product,
//       DescriptorBuilder(library, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "S = Q K^T")
//           .Set(kMatmulComputeType, CUDNN_DATA_FLOAT)
//           .Finish());
//
// Source: cuDNN's manual, "cudnn_graph Library"
// Threads: a descriptor that is finished may be read by several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker_runtime/cuda/cudnn_library.h"

namespace muster::cudnn {

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Library& library, cudnnBackendDescriptor_t raw)
      : library_(&library), raw_(raw) {}
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_ != nullptr) library_->destroy_descriptor(raw_);
  }

  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  const Library* library_ = nullptr;  // stays open
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// An attribute whose values are of type T.
template <typename T>
struct Attribute {
  cudnnBackendAttributeName_t name;
  const char* text;
};

// The word of cuDNN for T.
template <typename T>
constexpr cudnnBackendAttributeType_t TypeOf() {
  if constexpr (std::is_same_v<T, Descriptor>) return CUDNN_TYPE_BACKEND_DESCRIPTOR;
  if constexpr (std::is_same_v<T, int64_t>) return CUDNN_TYPE_INT64;
  if constexpr (std::is_same_v<T, bool>) return CUDNN_TYPE_BOOLEAN;
  if constexpr (std::is_same_v<T, char>) return CUDNN_TYPE_CHAR;
  if constexpr (std::is_same_v<T, void*>) return CUDNN_TYPE_VOID_PTR;
  if constexpr (std::is_same_v<T, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
  if constexpr (std::is_same_v<T, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
  if constexpr (std::is_same_v<T, cudnnPointwiseMode_t>) return CUDNN_TYPE_POINTWISE_MODE;
  if constexpr (std::is_same_v<T, cudnnReduceTensorOp_t>) return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
  if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
  if constexpr (std::is_same_v<T, cudnnBackendNumericalNote_t>) return CUDNN_TYPE_NUMERICAL_NOTE;
}

// Makes one; of several failures the first is told.
class DescriptorBuilder {
 public:
  // `what` it is, for failures: "tensor Q".
  DescriptorBuilder(const Library& library, cudnnBackendDescriptorType_t type, std::string what)
      : library_(library), what_(std::move(what)) {
    cudnnBackendDescriptor_t raw = nullptr;
    status_ = library_.ToStatus(library_.create_descriptor(type, &raw), what_);
    if (status_.ok()) made_ = Descriptor(library_, raw);
  }

  template <typename T>
  DescriptorBuilder& Set(Attribute<T> attribute, const std::type_identity_t<T>& value) {
    if constexpr (std::is_same_v<T, Descriptor>) {
      return SetDescriptors(attribute, {value.raw()});
    } else {
      return SetAll(attribute, absl::MakeConstSpan(&value, 1));
    }
  }
  template <typename T>
  DescriptorBuilder& SetAll(Attribute<T> attribute,
                            absl::Span<const std::type_identity_t<T>> values) {
    SetRaw(attribute.name, attribute.text, TypeOf<T>(), values.data(), values.size());
    return *this;
  }
  DescriptorBuilder& SetDescriptors(Attribute<Descriptor> attribute,
                                    const std::vector<cudnnBackendDescriptor_t>& values) {
    SetRaw(attribute.name, attribute.text, TypeOf<Descriptor>(), values.data(), values.size());
    return *this;
  }

  // Once. Errors: what cuDNN said of an attribute, or of all together.
  absl::StatusOr<Descriptor> Finish() {
    if (!status_.ok()) return status_;
    absl::Status status = library_.ToStatus(library_.finalize(made_.raw()), what_);
    if (!status.ok()) return status;
    return std::move(made_);
  }

 private:
  void SetRaw(cudnnBackendAttributeName_t name, const char* text, cudnnBackendAttributeType_t type,
              const void* values, size_t count) {
    if (!status_.ok()) return;
    const cudnnStatus_t status =
        library_.set_attribute(made_.raw(), name, type, static_cast<int64_t>(count), values);
    status_ = library_.ToStatus(status, absl::StrCat(what_, ", attribute ", text));
  }

  const Library& library_;
  const std::string what_;
  Descriptor made_;
  absl::Status status_;
};

// What is asked of one that is finished.
//
// Errors: kInternal: there is no such value, or cuDNN's words.
template <typename T>
absl::StatusOr<T> Get(const Library& library, const Descriptor& from, Attribute<T> attribute) {
  T value{};
  int64_t count = 0;
  const absl::Status status = library.ToStatus(
      library.get_attribute(from.raw(), attribute.name, TypeOf<T>(), 1, &count, &value),
      absl::StrCat("reading ", attribute.text));
  if (!status.ok()) return status;
  if (count != 1) return absl::InternalError(absl::StrCat("cuDNN has no ", attribute.text));
  return value;
}

}  // namespace muster::cudnn
