// Times the kernels of a CUDA device beside what its memory moves in a plain copy and what is
// expected of them, and prints rows of a Markdown table. Shapes are those of trainings of GPT-2
// 124M and of a Llama of 1B; kernels are those that they run, and inputs are random. Ends with 77
// and a sentence where there is no GPU.
//
// kernel_figures [EXPECTED]: all of it, beside what a file of estimate.py expects;
// kernel_figures --device: the name of the GPU alone.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/products.h"
#include "worker_runtime/kernels/attention_tiles.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/library_attention.h"
#include "worker_runtime/kernels/logit_chunks.h"

namespace muster::kernels {
namespace {

constexpr int kSkipped = 77;
constexpr int kWarmUps = 3;
constexpr int kRuns = 20;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "kernel_figures: %s\n", what.c_str());
  std::exit(1);
}
void Check(cudaError_t error) {
  if (error != cudaSuccess) Fail(cudaGetErrorString(error));
}
void CheckLaunch(LaunchError error) {
  if (error != nullptr) Fail(error);
}

// Bytes of numbers between 0.5 and 2 in every type that is narrower than double: zeros would draw
// less power, and so run at higher clocks, than what a training multiplies.
std::vector<uint16_t> RandomPairs(size_t count) {
  std::vector<uint16_t> pairs(count);
  uint64_t state = 88172645463325252;
  for (uint16_t& pair : pairs) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    pair = static_cast<uint16_t>(0x3f00 | (state & 0x80ff));
  }
  return pairs;
}

// An array of the device.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : size_(size) {
    Check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
    static const std::vector<uint16_t> pairs = RandomPairs(1 << 20);
    const size_t all = size * sizeof(T), some = pairs.size() * sizeof(uint16_t);
    for (size_t at = 0; at < all; at += some) {
      Check(cudaMemcpy(reinterpret_cast<char*>(data_) + at, pairs.data(), std::min(some, all - at),
                       cudaMemcpyHostToDevice));
    }
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  operator T*() const { return data_; }  // NOLINT: stands for its pointer
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }

 private:
  T* data_ = nullptr;
  int64_t size_;
};

// Milliseconds of one call of `run`, the mean of kRuns in a row.
double Milliseconds(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int i = 0; i < kWarmUps; ++i) run();
  Check(cudaEventRecord(begin));
  for (int i = 0; i < kRuns; ++i) run();
  Check(cudaEventRecord(end));
  Check(cudaEventSynchronize(end));
  float elapsed = 0;
  Check(cudaEventElapsedTime(&elapsed, begin, end));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return elapsed / kRuns;
}

// What is expected of a figure, by the beginning of its name: lines "kernel|name|value".
class Expectations {
 public:
  explicit Expectations(const char* file) {
    if (file == nullptr) return;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<std::string> cells = absl::StrSplit(line, '|');
      if (cells.size() == 3 && cells[0] == "kernel") values_[cells[1]] = cells[2];
    }
  }
  // That of the longest beginning; empty: there is none.
  std::string Of(const std::string& figure) const {
    std::string value;
    for (const auto& [name, expected] : values_) {  // a longer one comes after its beginnings
      if (absl::StartsWith(figure, name)) value = expected;
    }
    return value;
  }

 private:
  std::map<std::string, std::string> values_;
};

class Figures {
 public:
  explicit Figures(const char* expectations) : expectations_(expectations) {
    const Array<uint16_t> from(int64_t{1} << 31), to(int64_t{1} << 31);
    const double ms = Milliseconds(
        [&] { Check(cudaMemcpyAsync(to, from, from.bytes(), cudaMemcpyDeviceToDevice, nullptr)); });
    copy_ = 2e-6 * static_cast<double>(from.bytes()) / ms;
    std::printf("| copy of %.2f GB | %.3f | %.0f GB/s | 100 %% | |\n",
                static_cast<double>(from.bytes()) * 1e-9, ms, copy_);
  }

  // One that memory bounds: `bytes` that it reads and writes at least.
  void Memory(const std::string& name, int64_t bytes, const std::function<LaunchError()>& launch) {
    const double ms = Milliseconds([&] { CheckLaunch(launch()); });
    const double rate = 1e-6 * static_cast<double>(bytes) / ms;
    std::printf("| %s | %.3f | %.0f GB/s | %.0f %% | %s |\n", name.c_str(), ms, rate,
                100 * rate / copy_, expectations_.Of(name).c_str());
    std::fflush(stdout);
  }
  // One that tensor cores bound.
  void Products(const std::string& name, double operations,
                const std::function<LaunchError()>& launch) {
    const double ms = Milliseconds([&] { CheckLaunch(launch()); });
    std::printf("| %s | %.3f | %.1f TFLOP/s | | %s |\n", name.c_str(), ms, 1e-9 * operations / ms,
                expectations_.Of(name).c_str());
    std::fflush(stdout);
  }

 private:
  const Expectations expectations_;
  double copy_ = 0;  // GB/s, bytes read and written
};

// bf16 values that follow fp32 masters by draws: 30 bytes per parameter.
void Update(Figures& figures, const std::string& name, int64_t n) {
  const Array<uint16_t> value(n);
  const Array<float> gradient(n), master(n), first(n), second(n);
  const Array<cuda::UpdateDecision> decision(1);
  figures.Memory("AdamW, " + name, 30 * n, [&] {
    const cuda::UpdateRun all = {.end = n};
    return cuda::AdamWUpdate(nullptr, {&all, 1}, decision, {gradient, master, first, second, value},
                             {});
  });
  const Array<double> partials(NumNormBlocks(n)), scratch(cuda::TreeScratch(NumNormBlocks(n)) + 1),
      sum(1);
  figures.Memory("norm, " + name, 4 * n, [&] {
    const LaunchError error = cuda::SquaresByBlock<float>(nullptr, gradient, n, partials);
    if (error != nullptr) return error;
    return cuda::TreeSum(nullptr, partials, NumNormBlocks(n), scratch, sum);
  });
}

// What surrounds the products in a layer of GPT-2 124M, in bf16.
void Rows(Figures& figures) {
  const RowShape shape = {.rows = 16 * 1024, .width = 768};
  const RowShape wide = {.rows = shape.rows, .width = 4 * shape.width};
  const NormShape norm = {.rows = shape.rows, .width = shape.width};
  const int64_t n = shape.rows * shape.width;
  const Array<uint16_t> x(4 * n), y(4 * n), z(4 * n), gamma(shape.width), beta(shape.width);
  const Array<float> mean(shape.rows), rstd(shape.rows),
      scratch(std::max(cuda::ColumnScratch(wide), cuda::NormScratch(norm))), dgamma(shape.width),
      dbeta(wide.width);
  const cuda::NormSaved saved = {mean, rstd};
  figures.Memory("layer norm", 2 * 2 * n, [&] {
    return cuda::NormForward<uint16_t>(nullptr, norm, x, {gamma, beta, 1e-5}, y, saved);
  });
  figures.Memory("layer norm's gradients", 2 * 4 * n, [&] {
    return cuda::NormBackward<uint16_t, float>(nullptr, norm, {x, y, z}, gamma, saved, z,
                                               {dgamma, dbeta, true}, scratch);
  });
  figures.Memory("GELU", 2 * 2 * 4 * n, [&] {
    return cuda::BiasGeluForward<uint16_t>(nullptr, wide, {x, nullptr, nullptr}, y);
  });
  figures.Memory("GELU's gradient", 2 * 3 * 4 * n,
                 [&] { return cuda::GeluBackward<uint16_t>(nullptr, x, y, y, 4 * n); });
  figures.Memory("bias's gradient", 2 * 4 * n, [&] {
    return cuda::BiasGradient<uint16_t, float>(nullptr, wide, x, dbeta, true, scratch);
  });
}

// What stands around the products in a layer of a Llama of 1B, in bf16: rows of 2048, lines of 32
// heads of queries and 8 each of keys and values, of 64.
void LlamaRows(Figures& figures) {
  constexpr int64_t kRows = 8 * 2048, kWidth = 2048, kHeadWidth = 64, kLine = 48 * kHeadWidth;
  const int64_t n = kRows * kWidth;
  const NormShape rms = {.kind = NormKind::kRms, .rows = kRows, .width = kWidth};
  const NormShape heads = {NormKind::kRms, 32 * kRows, kHeadWidth, 32, kLine};
  const Array<uint16_t> x(kRows * kLine), y(kRows * kLine), z(n), gamma(kWidth);
  const Array<float> rstd(heads.rows), dgamma(kWidth),
      scratch(std::max(cuda::NormScratch(rms), cuda::NormScratch(heads)));
  const cuda::NormSaved saved = {nullptr, rstd};
  figures.Memory("RMS norm", 2 * 2 * n, [&] {
    return cuda::NormForward<uint16_t>(nullptr, rms, x, {gamma, nullptr, 1e-5}, y, saved);
  });
  figures.Memory("RMS norm's gradients", 2 * 4 * n, [&] {
    return cuda::NormBackward<uint16_t, float>(nullptr, rms, {x, y, z}, gamma, saved, z,
                                               {dgamma, nullptr, true}, scratch);
  });
  const RowShape wide = {.rows = kRows, .width = 4 * kWidth};
  const Array<uint16_t> gate_up(2 * 4 * n), gated(4 * n);
  figures.Memory("SwiGLU", 2 * 3 * 4 * n,
                 [&] { return cuda::SwiGluForward<uint16_t>(nullptr, wide, gate_up, gated); });
  figures.Memory("SwiGLU's gradients", 2 * 5 * 4 * n, [&] {
    return cuda::SwiGluBackward<uint16_t>(nullptr, wide, gate_up, gated, gate_up);
  });
  const RotaryShape rotary = {
      .batch = 8, .sequence = 2048, .heads = 40, .head_width = kHeadWidth, .line = kLine};
  RotaryFrequencies frequencies;
  for (double& frequency : frequencies.of_pair) frequency = 0.1;
  figures.Memory("rotary", 2 * 2 * kRows * rotary.heads * kHeadWidth,
                 [&] { return cuda::Rotate<uint16_t>(nullptr, rotary, frequencies, y); });
  figures.Memory("norm of queries' heads", 2 * 2 * n, [&] {
    return cuda::NormForward<uint16_t>(nullptr, heads, x, {gamma, nullptr, 1e-5}, y, saved);
  });
  figures.Memory("norm of queries' heads, its gradients", 2 * 3 * n, [&] {
    return cuda::NormBackward<uint16_t, float>(nullptr, heads, {x, y, nullptr}, gamma, saved, y,
                                               {dgamma, nullptr, true}, scratch);
  });
}

constexpr AttentionShape kAttentions[] = {
    {.batch = 16, .sequence = 1024, .heads = 12, .head_width = 64},
    {.batch = 16, .sequence = 1024, .heads = 12, .kv_heads = 4, .head_width = 64}};

// What the rows of a shape are named by: the same products, of fewer keys.
std::string Keys(const AttentionShape& shape) {
  return shape.group() == 1 ? "" : " with keys of " + std::to_string(shape.key_heads()) + " heads";
}

// Numbers of a shape's arrays, and operations of a product: causal, half of sequence x sequence x
// width. There are 2 forward and 5 backward.
struct AttentionSizes {
  explicit AttentionSizes(const AttentionShape& shape)
      : qkv(shape.batch * shape.sequence * shape.line_width()),
        out(shape.batch * shape.sequence * shape.out_width()),
        product(static_cast<double>(out) * static_cast<double>(shape.sequence)) {}
  int64_t qkv, out;
  double product;
};

void AttentionOf(Figures& figures, const AttentionShape& shape) {
  const AttentionSizes sizes(shape);
  const int64_t rows = shape.query_rows();
  const Array<uint16_t> qkv(sizes.qkv), dqkv(sizes.qkv), out(sizes.out), dout(sizes.out);
  const Array<float> row_max(rows), row_scale(rows), scratch(rows);
  figures.Products("our attention, sequence 1024" + Keys(shape), 2 * sizes.product, [&] {
    return cuda::AttentionForward<uint16_t>(nullptr, shape, qkv, out, {row_max, row_scale},
                                            cuda::kSharedBytesOfAll);
  });
  figures.Products("our attention's gradient (counted as 5 products; it makes 7)" + Keys(shape),
                   5 * sizes.product, [&] {
                     return cuda::AttentionBackward<uint16_t>(
                         nullptr, shape, qkv, {row_max, row_scale}, {out, dout}, dqkv, scratch,
                         cuda::kSharedBytesOfAll);
                   });
}

void AttentionBy(Figures& figures, AttentionLibrary& library, const LibraryAttention& attention) {
  const auto check = [](const absl::Status& status) -> LaunchError {
    if (!status.ok()) Fail(std::string(status.message()));
    return nullptr;
  };
  check(library.Prepare(attention));
  const AttentionSizes sizes(attention.shape);
  const Array<uint16_t> qkv(sizes.qkv), dqkv(sizes.qkv), out(sizes.out), dout(sizes.out);
  const Array<float> log_sums(attention.shape.query_rows());
  const kernels::AttentionWorkspace bytes = library.WorkspaceOf(attention);
  const Array<char> workspace(std::max(bytes.forward, bytes.backward));
  const std::string by = (attention.same_bits ? "with the same bits by " : "by ") + library.name() +
                         Keys(attention.shape);
  if (!attention.same_bits) {
    figures.Products("attention " + by, 2 * sizes.product, [&] {
      return check(library.Forward(nullptr, attention, {qkv, out, log_sums, workspace}));
    });
  }
  figures.Products("attention's gradient " + by, 5 * sizes.product, [&] {
    return check(library.Backward(nullptr, attention, {qkv, out, dout, log_sums, dqkv, workspace}));
  });
}

// The same by cuDNN, where it is there: with quick gradients, and with those that have the same
// bits in every run.
void AttentionByCudnn(Figures& figures) {
  const absl::StatusOr<std::unique_ptr<CudaApi>> cuda = OpenCuda(0);
  if (!cuda.ok()) Fail(std::string(cuda.status().message()));
  const absl::StatusOr<std::unique_ptr<AttentionLibrary>> library = MakeCudnnAttention(**cuda);
  if (!library.ok()) {
    std::printf("| attention by cuDNN: %s | | | |\n",
                std::string(library.status().message()).c_str());
    return;
  }
  for (const AttentionShape& shape : kAttentions) {
    for (const bool same_bits : {false, true}) {
      AttentionBy(figures, **library, {shape, DType::kBf16, same_bits});
    }
  }
}

// A chunk of the loss as it is trained: rows of 50304, of which 50257 count.
void VocabularyOf(Figures& figures) {
  const int64_t padded = PaddedVocabulary(50257);
  const cuda::LogitShape logits = {
      .rows = RowsAtOnce(32 * 1024, padded, kLogitsAtOnce), .width = 50257, .stride = padded};
  const int64_t n = logits.rows * logits.stride;
  const Array<uint16_t> z(n);
  const Array<int32_t> targets(logits.rows);
  Check(cudaMemset(targets, 0, targets.bytes()));
  const Array<float> scale(1);
  const Array<double> losses(logits.rows);
  figures.Memory("cross-entropy and its gradient", 2 * 2 * n, [&] {
    return cuda::CrossEntropyRows<uint16_t>(nullptr, logits, z, targets, scale, losses);
  });
  const EmbeddingShape shape = {.batch = 16, .sequence = 1024, .width = 768};
  const int64_t rows = shape.batch * shape.sequence;
  std::vector<int32_t> words(rows);
  for (int64_t i = 0; i < rows; ++i) words[i] = static_cast<int32_t>(i * i % 50257);
  const Array<int32_t> tokens(rows);
  Check(cudaMemcpy(tokens, words.data(), tokens.bytes(), cudaMemcpyHostToDevice));
  const Array<uint16_t> table(50304 * shape.width), positions(1024 * shape.width),
      y(rows * shape.width);
  figures.Memory("embedding", 2 * 3 * rows * shape.width, [&] {
    return cuda::EmbeddingForward<uint16_t>(nullptr, shape, tokens, table, positions, y);
  });
  // Gradients are in float, as an engine keeps them: the sum of a token is read and written with
  // its row.
  const Array<float> dtable(50304 * shape.width), dpositions(1024 * shape.width);
  figures.Memory("embedding's gradients", 12 * rows * shape.width, [&] {
    return cuda::EmbeddingBackward<uint16_t, float>(nullptr, shape, tokens, y,
                                                    {dtable, dpositions});
  });
}

// Products of a layer and of the head as cuBLASLt is asked for them, and GELU on a product's way
// and in a pass of its own.
void ProductsOf(Figures& figures) {
  const absl::StatusOr<std::unique_ptr<CudaApi>> cuda = OpenCuda(0);
  if (!cuda.ok()) Fail(std::string(cuda.status().message()));
  const absl::StatusOr<std::unique_ptr<muster::Products>> made = MakeCublasLtProducts(**cuda);
  if (!made.ok()) {
    std::printf("| products: %s | | | | |\n", std::string(made.status().message()).c_str());
    return;
  }
  muster::Products& products = **made;
  const int64_t width = 768, padded = PaddedVocabulary(50257);
  const int64_t rows = RowsAtOnce(32 * 1024, padded, kLogitsAtOnce);
  const auto time = [&](const char* name, const CudaProduct& p,
                        const std::function<LaunchError()>& then) {
    const double operations =
        2 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    if (!products.HasInOnePass(p)) {
      std::printf("| %s: cuBLASLt has it not | | | | |\n", name);
      return;
    }
    figures.Products(name, operations, [&]() -> LaunchError {
      const absl::Status status = products.Multiply(nullptr, p);
      if (!status.ok()) Fail(std::string(status.message()));
      return then == nullptr ? nullptr : then();
    });
  };
  const auto bf16 = [](CudaProduct p) {
    p.type = p.result = DType::kBf16;
    return p;
  };
  const Array<uint16_t> x(rows * 4 * width), table(padded * width), logits(rows * padded),
      bias(4 * width), pre(rows * 4 * width), y(rows * 4 * width);
  const Array<float> dtable(padded * width);
  time("head",
       bf16({.m = rows,
             .n = padded,
             .k = width,
             .transpose_b = true,
             .a = x,
             .b = table,
             .c = logits}),
       nullptr);
  time("head, input's gradient",
       bf16({.m = rows, .n = width, .k = padded, .a = logits, .b = table, .c = y}), nullptr);
  CudaProduct dw = bf16({.m = padded,
                         .n = width,
                         .k = rows,
                         .transpose_a = true,
                         .a = logits,
                         .b = x,
                         .addend = dtable,
                         .c = dtable});
  dw.result = DType::kF32;
  time("head, table's gradient", dw, nullptr);
  CudaProduct wide = bf16(
      {.m = rows, .n = 4 * width, .k = width, .transpose_b = true, .a = x, .b = table, .c = y});
  time("width to 4 x width", wide, nullptr);
  CudaProduct fused = wide;
  fused.epilogue = Epilogue::kBiasGelu;
  fused.bias = bias;
  fused.pre = pre;
  time("the same with bias and GELU on its way", fused, nullptr);
  wide.epilogue = Epilogue::kBias;
  wide.bias = bias;
  wide.c = pre;
  time("the same with the bias on its way and GELU after it", wide, [&] {
    return cuda::BiasGeluForward<uint16_t>(nullptr, {.rows = rows, .width = 4 * width},
                                           {pre, nullptr, nullptr}, y);
  });
}

int Run(const char* argument) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("no GPU: %s\n", cudaGetErrorString(error));
    return kSkipped;
  }
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  if (argument != nullptr && std::string(argument) == "--device") return 0;
  std::printf(
      "\nIn bf16, the mean of %d runs:\n\n| kernel | ms | rate | of the copy | expected |\n",
      kRuns);
  std::printf("| --- | --- | --- | --- | --- |\n");
  Figures figures(argument);
  Update(figures, "124M", 124'439'808);
  Update(figures, "350M", 354'823'168);
  Update(figures, "774M", 774'030'080);
  Update(figures, "1.5B", 1'557'611'200);
  Rows(figures);
  LlamaRows(figures);
  for (const AttentionShape& shape : kAttentions) AttentionOf(figures, shape);
  AttentionByCudnn(figures);
  VocabularyOf(figures);
  ProductsOf(figures);
  return 0;
}

}  // namespace
}  // namespace muster::kernels

int main(int argc, char** argv) { return muster::kernels::Run(argc > 1 ? argv[1] : nullptr); }
