#include "worker_runtime/cuda/cudnn_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::cudnn {
namespace {

// What cuDNN calls them.
constexpr Attribute<cudnnDataType_t> kTensorType = {CUDNN_ATTR_TENSOR_DATA_TYPE, "data type"};
constexpr Attribute<int64_t> kTensorDimensions = {CUDNN_ATTR_TENSOR_DIMENSIONS, "dimensions"};
constexpr Attribute<int64_t> kTensorStrides = {CUDNN_ATTR_TENSOR_STRIDES, "strides"};
constexpr Attribute<int64_t> kTensorUid = {CUDNN_ATTR_TENSOR_UNIQUE_ID, "unique id"};
constexpr Attribute<int64_t> kTensorAlignment = {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, "alignment"};
constexpr Attribute<bool> kTensorIsVirtual = {CUDNN_ATTR_TENSOR_IS_VIRTUAL, "is virtual"};
constexpr Attribute<bool> kTensorIsByValue = {CUDNN_ATTR_TENSOR_IS_BY_VALUE, "is by value"};

constexpr Attribute<cudnnPointwiseMode_t> kPointwiseMode = {CUDNN_ATTR_POINTWISE_MODE, "mode"};
constexpr Attribute<cudnnDataType_t> kPointwiseType = {CUDNN_ATTR_POINTWISE_MATH_PREC,
                                                       "compute type"};
constexpr Attribute<int64_t> kPointwiseAxis = {CUDNN_ATTR_POINTWISE_AXIS, "axis"};
constexpr Attribute<Descriptor> kPointwiseOf = {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                                "pointwise"};
constexpr Attribute<Descriptor> kPointwiseX = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, "x"};
constexpr Attribute<Descriptor> kPointwiseB = {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, "b"};
constexpr Attribute<Descriptor> kPointwiseT = {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, "condition"};
constexpr Attribute<Descriptor> kPointwiseY = {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, "result"};

constexpr Attribute<cudnnDataType_t> kProductType = {CUDNN_ATTR_MATMUL_COMP_TYPE, "compute type"};
constexpr Attribute<Descriptor> kProductOf = {CUDNN_ATTR_OPERATION_MATMUL_DESC, "product"};
constexpr Attribute<Descriptor> kProductA = {CUDNN_ATTR_OPERATION_MATMUL_ADESC, "a"};
constexpr Attribute<Descriptor> kProductB = {CUDNN_ATTR_OPERATION_MATMUL_BDESC, "b"};
constexpr Attribute<Descriptor> kProductC = {CUDNN_ATTR_OPERATION_MATMUL_CDESC, "result"};

constexpr Attribute<cudnnReduceTensorOp_t> kReductionOperator = {CUDNN_ATTR_REDUCTION_OPERATOR,
                                                                 "operator"};
constexpr Attribute<cudnnDataType_t> kReductionType = {CUDNN_ATTR_REDUCTION_COMP_TYPE,
                                                       "compute type"};
constexpr Attribute<Descriptor> kReductionOf = {CUDNN_ATTR_OPERATION_REDUCTION_DESC, "reduction"};
constexpr Attribute<Descriptor> kReductionX = {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, "x"};
constexpr Attribute<Descriptor> kReductionY = {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, "result"};

constexpr Attribute<Descriptor> kReshapeX = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, "x"};
constexpr Attribute<Descriptor> kReshapeY = {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, "result"};

constexpr Attribute<cudnnHandle_t> kGraphHandle = {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, "handle"};
constexpr Attribute<Descriptor> kGraphOperations = {CUDNN_ATTR_OPERATIONGRAPH_OPS, "operations"};

constexpr int64_t kAlignment = 16;
constexpr int64_t kFirstOwnUid = 1000;  // of what is never in memory

}  // namespace

const Descriptor* GraphBuilder::Keep(absl::StatusOr<Descriptor> made) {
  if (!made.ok()) {
    if (status_.ok()) status_ = made.status();
    return nullptr;
  }
  parts_.push_back(*std::move(made));
  return &parts_.back();
}

Value GraphBuilder::Tensor(DescriptorBuilder builder, int64_t uid, cudnnDataType_t type,
                           const Shape& shape) {
  absl::StatusOr<Descriptor> made = builder.Set(kTensorType, type)
                                        .SetAll(kTensorDimensions, shape.dimensions)
                                        .SetAll(kTensorStrides, shape.strides)
                                        .Set(kTensorUid, uid)
                                        .Set(kTensorAlignment, kAlignment)
                                        .Finish();
  if (!made.ok() && status_.ok()) status_ = made.status();
  tensors_.push_back(made.ok() ? *std::move(made) : Descriptor());
  shapes_.push_back(shape);
  return {static_cast<int>(tensors_.size()) - 1};
}

Value GraphBuilder::Array(const ArraySpec& spec) {
  return Tensor(DescriptorBuilder(library_, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                                  absl::StrCat("array ", spec.name)),
                spec.uid, spec.type, {spec.dimensions, spec.strides});
}

Value GraphBuilder::Scalar(const char* name, int64_t uid) {
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_TENSOR_DESCRIPTOR, name);
  builder.Set(kTensorIsByValue, true);
  return Tensor(std::move(builder), uid, CUDNN_DATA_FLOAT, {{1, 1, 1, 1}, {1, 1, 1, 1}});
}

Value GraphBuilder::Intermediate(const char* name, cudnnDataType_t type, const Shape& shape) {
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_TENSOR_DESCRIPTOR, name);
  builder.Set(kTensorIsVirtual, true);
  return Tensor(std::move(builder), kFirstOwnUid + static_cast<int64_t>(tensors_.size()), type,
                shape);
}

void GraphBuilder::Operation(DescriptorBuilder builder) {
  absl::StatusOr<Descriptor> made = builder.Finish();
  if (!made.ok()) {
    if (status_.ok()) status_ = made.status();
    return;
  }
  operations_.push_back(*std::move(made));
}

Value GraphBuilder::Add(const Pointwise& p) {
  const Value to =
      p.to.is_none()
          ? Intermediate(p.name, p.type,
                         {shapes_[p.x.index].dimensions, Dense(shapes_[p.x.index].dimensions)})
          : p.to;
  DescriptorBuilder kind = Begin(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, p.name);
  kind.Set(kPointwiseMode, p.mode).Set(kPointwiseType, p.compute_type);
  if (p.axis >= 0) kind.Set(kPointwiseAxis, p.axis);
  const Descriptor* const pointwise = Keep(kind.Finish());
  if (pointwise == nullptr || !status_.ok()) return to;
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, p.name);
  builder.Set(kPointwiseOf, *pointwise).SetDescriptors(kPointwiseX, {RawOf(p.x)});
  if (!p.b.is_none()) builder.SetDescriptors(kPointwiseB, {RawOf(p.b)});
  if (!p.condition.is_none()) builder.SetDescriptors(kPointwiseT, {RawOf(p.condition)});
  builder.SetDescriptors(kPointwiseY, {RawOf(to)});
  Operation(std::move(builder));
  return to;
}

Value GraphBuilder::Product(const char* name, Value x, Value b, cudnnDataType_t type) {
  Dimensions dimensions = shapes_[x.index].dimensions;
  dimensions[3] = shapes_[b.index].dimensions[3];
  return Multiply(name, x, b, Intermediate(name, type, {dimensions, Dense(dimensions)}));
}

Value GraphBuilder::Multiply(const char* name, Value x, Value b, Value to) {
  if (to.is_none()) return Product(name, x, b, CUDNN_DATA_FLOAT);
  const Descriptor* const product = Keep(
      Begin(CUDNN_BACKEND_MATMUL_DESCRIPTOR, name).Set(kProductType, CUDNN_DATA_FLOAT).Finish());
  if (product == nullptr || !status_.ok()) return to;
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, name);
  builder.Set(kProductOf, *product)
      .SetDescriptors(kProductA, {RawOf(x)})
      .SetDescriptors(kProductB, {RawOf(b)})
      .SetDescriptors(kProductC, {RawOf(to)});
  Operation(std::move(builder));
  return to;
}

Value GraphBuilder::Reduce(const char* name, cudnnReduceTensorOp_t op, Value x, Value to) {
  if (to.is_none()) {
    Dimensions dimensions = shapes_[x.index].dimensions;
    dimensions[3] = 1;
    to = Intermediate(name, CUDNN_DATA_FLOAT, {dimensions, Dense(dimensions)});
  }
  const Descriptor* const reduction = Keep(Begin(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, name)
                                               .Set(kReductionOperator, op)
                                               .Set(kReductionType, CUDNN_DATA_FLOAT)
                                               .Finish());
  if (reduction == nullptr || !status_.ok()) return to;
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, name);
  builder.Set(kReductionOf, *reduction)
      .SetDescriptors(kReductionX, {RawOf(x)})
      .SetDescriptors(kReductionY, {RawOf(to)});
  Operation(std::move(builder));
  return to;
}

Value GraphBuilder::Transpose(const char* name, Value x, cudnnDataType_t type) {
  const Shape& from = shapes_[x.index];
  const Value to =
      Intermediate(name, type, {Transposed(from.dimensions), Transposed(from.strides)});
  if (!status_.ok()) return to;
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, name);
  builder.SetDescriptors(kReshapeX, {RawOf(x)}).SetDescriptors(kReshapeY, {RawOf(to)});
  Operation(std::move(builder));
  return to;
}

absl::StatusOr<OperationGraph> GraphBuilder::Finish(cudnnHandle_t handle) {
  if (!status_.ok()) return status_;
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const Descriptor& operation : operations_) operations.push_back(operation.raw());
  DescriptorBuilder builder = Begin(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph");
  if (handle != nullptr) builder.Set(kGraphHandle, handle);
  absl::StatusOr<Descriptor> graph = builder.SetDescriptors(kGraphOperations, operations).Finish();
  if (!graph.ok()) return graph.status();
  OperationGraph done;
  for (std::vector<Descriptor>* list : {&tensors_, &parts_, &operations_}) {
    for (Descriptor& part : *list) done.parts.push_back(std::move(part));
  }
  done.graph = *std::move(graph);
  return done;
}

}  // namespace muster::cudnn
