// Operations on arrays of four dimensions, which cuDNN's engines run as one.
//
//   GraphBuilder graph(library);
//   const Value q = graph.Array({.name = "Q", .uid = 1, .type = CUDNN_DATA_BFLOAT16, ...});
//   const Value scores = graph.Multiply(q, keys, "S");
//   MUSTER_ASSIGN_OR_RETURN(const OperationGraph done, graph.Finish(handle));
//
// Threads: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/cuda/cudnn_descriptor.h"

namespace muster::cudnn {

using Dimensions = std::array<int64_t, 4>;

// Strides of dimensions without gaps, the last innermost.
constexpr Dimensions Dense(const Dimensions& of) {
  return {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1};
}
// Rows as columns: the last two change places.
constexpr Dimensions Transposed(const Dimensions& of) { return {of[0], of[1], of[3], of[2]}; }

// An array in memory, which is named by `uid` when the graph is run.
struct ArraySpec {
  std::string name;
  int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dimensions dimensions = {};
  Dimensions strides = {};
};

// What an operation reads or makes: an index into the builder's.
struct Value {
  int index = -1;
  bool is_none() const { return index < 0; }
};

struct Pointwise {
  const char* name;
  cudnnPointwiseMode_t mode;
  Value x;
  Value b = {};                             // the second operand, where there is one
  Value condition = {};                     // of a selection: x where it holds, else b
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // of the result
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  int64_t axis = -1;  // whose index is made
  Value to = {};      // none: a result that is never in memory
};

// Keeps what it was made of.
struct OperationGraph {
  std::vector<Descriptor> parts;
  Descriptor graph;
};

// Builds a graph; the first of several failures is told by Finish.
class GraphBuilder {
 public:
  explicit GraphBuilder(const Library& library) : library_(library) {}

  // 16-byte aligned.
  Value Array(const ArraySpec& spec);
  // An f32 that is read from the host's memory when the graph is run.
  Value Scalar(const char* name, int64_t uid);

  // Results that are not given a place are never in memory, dense, and of the operand's dimensions
  // but as said.
  Value Add(const Pointwise& pointwise);
  // x b, [.., m, k] and [.., k, n]; b may have fewer heads, which are repeated.
  Value Multiply(const char* name, Value x, Value b, Value to = {});
  // The same in `type`, never in memory.
  Value Product(const char* name, Value x, Value b, cudnnDataType_t type);
  // Over the last dimension, or to the dimensions of `to`.
  Value Reduce(const char* name, cudnnReduceTensorOp_t op, Value x, Value to = {});
  // The same elements with the last two dimensions exchanged, as `type`.
  Value Transpose(const char* name, Value x, cudnnDataType_t type);

  // `handle`: of the GPU that it is for; null: of one that is described to the engines.
  //
  // Errors: cuDNN's words, with the operation or tensor and the attribute.
  absl::StatusOr<OperationGraph> Finish(cudnnHandle_t handle);

 private:
  struct Shape {
    Dimensions dimensions = {};
    Dimensions strides = {};
  };
  Value Tensor(DescriptorBuilder builder, int64_t uid, cudnnDataType_t type, const Shape& shape);
  Value Intermediate(const char* name, cudnnDataType_t type, const Shape& shape);
  cudnnBackendDescriptor_t RawOf(Value value) const { return tensors_[value.index].raw(); }
  // Keeps what was made; null once something has failed.
  const Descriptor* Keep(absl::StatusOr<Descriptor> made);
  void Operation(DescriptorBuilder builder);
  DescriptorBuilder Begin(cudnnBackendDescriptorType_t type, const char* name) const {
    return DescriptorBuilder(library_, type, name);
  }

  const Library& library_;
  absl::Status status_;
  std::vector<Descriptor> tensors_;
  std::vector<Shape> shapes_;  // of tensors_
  std::vector<Descriptor> parts_;
  std::vector<Descriptor> operations_;
};

}  // namespace muster::cudnn
