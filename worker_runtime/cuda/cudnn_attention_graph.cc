#include "worker_runtime/cuda/cudnn_attention_graph.h"

#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster::cudnn {
namespace {

constexpr int64_t kRowAxis = 2, kColumnAxis = 3;

// The arrays and steps that the two passes share.
class Builder {
 public:
  Builder(const Library& library, const LibraryAttention& attention)
      : graph(library),
        shape_(attention.shape),
        type_(attention.type == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16) {}

  // [batch, heads, sequence, head_width] in rows of `row` numbers, at the array's own beginning.
  Value Heads(const char* name, int64_t uid, int64_t row) {
    return graph.Array({name, uid, type_, heads(), strides(row)});
  }
  // The same of K and V, and of their gradients.
  Value KeyHeads(const char* name, int64_t uid) {
    return graph.Array({name, uid, type_, key_heads(), strides(packed_row())});
  }
  // The same with rows as columns.
  Value KeyHeadsAcross(const char* name, int64_t uid) {
    return graph.Array(
        {name, uid, type_, Transposed(key_heads()), Transposed(strides(packed_row()))});
  }
  // A float for each row.
  Value Rows(const char* name, int64_t uid) {
    const Dimensions dimensions = {shape_.batch, shape_.heads, shape_.sequence, 1};
    return graph.Array({name, uid, CUDNN_DATA_FLOAT, dimensions, Dense(dimensions)});
  }
  // f32, dense.
  Value Sums(const char* name, int64_t uid) {
    return graph.Array({name, uid, CUDNN_DATA_FLOAT, heads(), Dense(heads())});
  }
  Value Binary(const char* name, cudnnPointwiseMode_t mode, Value x, Value b) {
    return graph.Add({.name = name, .mode = mode, .x = x, .b = b});
  }
  Value Unary(const char* name, cudnnPointwiseMode_t mode, Value x) {
    return graph.Add({.name = name, .mode = mode, .x = x});
  }

  // Puts kMasked where the key comes after the query.
  Value Causal(Value scores) {
    const Value masked = graph.Scalar("masked", kMasked);
    const auto index = [&](const char* name, int64_t axis) {
      return graph.Add({.name = name,
                        .mode = CUDNN_POINTWISE_GEN_INDEX,
                        .x = scores,
                        .type = CUDNN_DATA_INT32,
                        .compute_type = CUDNN_DATA_INT32,
                        .axis = axis});
    };
    const Value row = index("query", kRowAxis);
    const Value column = index("key", kColumnAxis);
    const Value seen = graph.Add({.name = "query >= key",
                                  .mode = CUDNN_POINTWISE_CMP_GE,
                                  .x = row,
                                  .b = column,
                                  .type = CUDNN_DATA_BOOLEAN,
                                  .compute_type = CUDNN_DATA_BOOLEAN});
    return graph.Add({.name = "masked S",
                      .mode = CUDNN_POINTWISE_BINARY_SELECT,
                      .x = scores,
                      .b = masked,
                      .condition = seen});
  }

  // The product of `x` and `b` for each head of Q, added up over those that share a head of K.
  void MultiplyToKeyHeads(const char* name, Value x, Value b, Value to) {
    if (shape_.group() == 1) {
      graph.Multiply(name, x, b, to);
    } else {
      graph.Reduce("sum of a group", CUDNN_REDUCE_TENSOR_ADD, graph.Product(name, x, b, type_), to);
    }
  }

  int64_t packed_row() const { return shape_.line_width(); }
  int64_t out_row() const { return shape_.out_width(); }
  cudnnDataType_t type() const { return type_; }

  GraphBuilder graph;

 private:
  Dimensions heads() const {
    return {shape_.batch, shape_.heads, shape_.sequence, shape_.head_width};
  }
  Dimensions key_heads() const {
    return {shape_.batch, shape_.key_heads(), shape_.sequence, shape_.head_width};
  }
  Dimensions strides(int64_t row) const {
    return {shape_.sequence * row, shape_.head_width, row, 1};
  }

  const kernels::AttentionShape shape_;
  const cudnnDataType_t type_;
};

// The engines know the softmax by its steps.
void Forward(Builder& b) {
  const Value q = b.Heads("Q", kQ, b.packed_row());
  const Value k = b.KeyHeadsAcross("K", kK);
  const Value v = b.KeyHeads("V", kV);
  const Value out = b.Heads("O", kOut, b.out_row());
  const Value log_sums = b.Rows("L", kLogSums);
  const Value scale = b.graph.Scalar("scale", kScale);

  const Value products = b.graph.Multiply("Q K", q, k);
  const Value scores = b.Causal(b.Binary("S", CUDNN_POINTWISE_MUL, products, scale));
  const Value largest = b.graph.Reduce("largest of a row", CUDNN_REDUCE_TENSOR_MAX, scores);
  const Value below = b.Binary("S - largest", CUDNN_POINTWISE_SUB, scores, largest);
  const Value weights = b.Unary("exp(S - largest)", CUDNN_POINTWISE_EXP, below);
  const Value sums = b.graph.Reduce("sum of a row", CUDNN_REDUCE_TENSOR_ADD, weights);
  const Value logs = b.Unary("log(sum)", CUDNN_POINTWISE_LOG, sums);
  b.graph.Add({.name = "largest + log(sum)",
               .mode = CUDNN_POINTWISE_ADD,
               .x = largest,
               .b = logs,
               .to = log_sums});
  const Value p = b.graph.Add(
      {.name = "P", .mode = CUDNN_POINTWISE_DIV, .x = weights, .b = sums, .type = b.type()});
  b.graph.Multiply("P V", p, v, out);
}

void Backward(Builder& b, bool same_bits) {
  const Value q = b.Heads("Q", kQ, b.packed_row());
  const Value k = b.KeyHeadsAcross("K", kK);
  const Value v = b.KeyHeadsAcross("V", kV);
  const Value out = b.Heads("O", kOut, b.out_row());
  const Value dout = b.Heads("dO", kDOut, b.out_row());
  const Value log_sums = b.Rows("L", kLogSums);
  const Value row_sums = b.Rows("D", kRowSums);
  const Value dq = b.Heads("dQ", kDQ, b.packed_row());
  const Value dk = b.KeyHeads("dK", kDK);
  const Value dv = b.KeyHeads("dV", kDV);
  const Value scale = b.graph.Scalar("scale", kScale);
  const Value one = b.graph.Scalar("one", kOne);  // in dropout's place: the engines look for it

  const Value weighted = b.Binary("dO * O", CUDNN_POINTWISE_MUL, dout, out);
  const Value added = b.graph.Reduce("sum of dO * O", CUDNN_REDUCE_TENSOR_ADD, weighted);
  b.graph.Add({.name = "D", .mode = CUDNN_POINTWISE_MUL, .x = added, .b = one, .to = row_sums});

  const Value products = b.graph.Multiply("Q K", q, k);
  const Value scores = b.Binary("S", CUDNN_POINTWISE_MUL, products, scale);
  const Value below = b.Causal(b.Binary("S - L", CUDNN_POINTWISE_SUB, scores, log_sums));
  const Value p = b.Unary("P", CUDNN_POINTWISE_EXP, below);
  b.MultiplyToKeyHeads("P^T dO", b.graph.Transpose("P^T", p, b.type()), dout, dv);

  const Value dp = b.graph.Multiply("dO V", dout, v);
  const Value away = b.Binary("dO V - D", CUDNN_POINTWISE_SUB, dp, row_sums);
  const Value unscaled = b.Binary("P * (dO V - D)", CUDNN_POINTWISE_MUL, away, p);
  const Value ds = b.Binary("dS", CUDNN_POINTWISE_MUL, unscaled, scale);
  b.MultiplyToKeyHeads("dS^T Q", b.graph.Transpose("dS^T", ds, b.type()), q, dk);

  const Value keys = b.graph.Transpose("K as rows", k, b.type());
  if (same_bits) {
    b.graph.Multiply("dS K", ds, keys, dq);
    return;
  }
  const Value query_sums = b.Sums("dQ in f32", kQuerySums);
  b.graph.Multiply("dS K", ds, keys, query_sums);
  b.graph.Add({.name = "dQ", .mode = CUDNN_POINTWISE_IDENTITY, .x = query_sums, .to = dq});
}

}  // namespace

absl::StatusOr<OperationGraph> AttentionGraph(const Library& library, Pass pass,
                                              const LibraryAttention& attention,
                                              cudnnHandle_t handle) {
  MUSTER_RETURN_IF_ERROR(CheckCudnnHas(attention));
  Builder builder(library, attention);
  if (pass == Pass::kForward) {
    Forward(builder);
  } else {
    Backward(builder, attention.same_bits);
  }
  return builder.graph.Finish(handle);
}

EngineNeeds NeedsOf(Pass pass, const LibraryAttention& attention) {
  const int64_t bytes =
      pass == Pass::kForward
          ? kernels::LibraryForwardBytes()
          : kernels::LibraryBackward(attention.shape, attention.same_bits).workspace;
  return {.workspace_bytes_max = bytes, .same_bits = attention.same_bits};
}

}  // namespace muster::cudnn
