// Products in float and bf16 by oneDNN, kept to the thread of the caller.
#include "worker_runtime/kernels/matmul.h"

#include <signal.h>
#include <dnnl.hpp>

#include <string>
#include <vector>

#include "proto/base/fatal_error.h"
#include "worker_runtime/kernels/matmul_f64.h"

// Calls of the OpenMP runtime that oneDNN is linked with, which need not be this compiler's own.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace muster::kernels {
namespace {

// The signals that are blocked during a product: all but those by which a fault is reported.
sigset_t SignalsToBlock() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP}) {
    sigdelset(&signals, fault);
  }
  return signals;
}

// One product, one thread, no signal handler. OpenMP's setting and the signal mask are the calling
// thread's, and are put back. oneDNN 2.6's sgemm keeps values further below the stack pointer than
// the 128 bytes that the x86-64 ABI protects, and the frame of a handler would overwrite them.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) {
    static const sigset_t blocked = SignalsToBlock();
    pthread_sigmask(SIG_BLOCK, &blocked, &signals_);
    omp_set_num_threads(1);
  }
  ~OneThread() {
    omp_set_num_threads(threads_);
    pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int threads_;
  sigset_t signals_;
};

const char* Why(dnnl_status_t status) {
  switch (status) {
    case dnnl_out_of_memory:
      return "there is no memory for what it needs beside them";
    case dnnl_unimplemented:
      return "it has no code for this CPU";
    default:
      return "it has failed";
  }
}

char Flag(Transpose transpose) { return transpose == Transpose::kYes ? 'T' : 'N'; }

[[noreturn]] void Fail(MatmulShape shape, const char* why) {
  FatalError("oneDNN cannot multiply matrices of " + std::to_string(shape.m) + " x " +
             std::to_string(shape.k) + " and " + std::to_string(shape.k) + " x " +
             std::to_string(shape.n) + ": " + why);
}

using Number = dnnl::memory::data_type;

dnnl::memory::desc Describe(int64_t rows, int64_t columns, const MatmulOperand<uint16_t>& operand) {
  const bool is_transposed = operand.transpose == Transpose::kYes;
  return {{rows, columns},
          Number::bf16,
          is_transposed ? dnnl::memory::dims{1, operand.stride}
                        : dnnl::memory::dims{operand.stride, 1}};
}

// oneDNN keeps what it made for a shape.
template <typename T>
void MultiplyBf16(MatmulShape shape, MatmulOperand<uint16_t> a, MatmulOperand<uint16_t> b,
                  MatmulResult<T> c) {
  if (shape.m == 0 || shape.n == 0) return;
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  const OneThread one_thread;
  try {
    dnnl::primitive_attr attributes;
    if (c.beta != 0) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      attributes.set_post_ops(sum);
    }
    const dnnl::memory::desc of_a = Describe(shape.m, shape.k, a),
                             of_b = Describe(shape.k, shape.n, b);
    const dnnl::memory::desc of_c({shape.m, shape.n},
                                  sizeof(T) == sizeof(float) ? Number::f32 : Number::bf16,
                                  dnnl::memory::dims{c.stride, 1});
    const dnnl::matmul multiply(
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(of_a, of_b, of_c), attributes, cpu));
    dnnl::stream stream(cpu);
    multiply.execute(stream,
                     {{DNNL_ARG_SRC, dnnl::memory(of_a, cpu, const_cast<uint16_t*>(a.data))},
                      {DNNL_ARG_WEIGHTS, dnnl::memory(of_b, cpu, const_cast<uint16_t*>(b.data))},
                      {DNNL_ARG_DST, dnnl::memory(of_c, cpu, c.data)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    Fail(shape, Why(error.status));
  }
}

}  // namespace

bool MultipliesTilesOfBf16() {
  static const bool does =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
  return does;
}

void Matmul(MatmulShape shape, MatmulOperand<uint16_t> a, MatmulOperand<uint16_t> b,
            MatmulResult<uint16_t> c) {
  MultiplyBf16(shape, a, b, c);
}

void Matmul(MatmulShape shape, MatmulOperand<uint16_t> a, MatmulOperand<uint16_t> b,
            MatmulResult<float> c) {
  MultiplyBf16(shape, a, b, c);
}

void Matmul(MatmulShape shape, float alpha, MatmulOperand<float> a, MatmulOperand<float> b,
            MatmulResult<float> c) {
  if (shape.m == 0 || shape.n == 0) return;
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(Flag(a.transpose), Flag(b.transpose), shape.m, shape.n, shape.k, alpha, a.data,
                 a.stride, b.data, b.stride, c.beta, c.data, c.stride);
  if (status != dnnl_success) Fail(shape, Why(status));
}

void Matmul(MatmulShape shape, double alpha, MatmulOperand<double> a, MatmulOperand<double> b,
            MatmulResult<double> c) {
  std::vector<double> columns;
  if (b.transpose == Transpose::kYes) {
    columns.resize(shape.k * shape.n);
    for (int64_t j = 0; j < shape.n; ++j) {
      for (int64_t p = 0; p < shape.k; ++p) columns[p * shape.n + j] = b.data[j * b.stride + p];
    }
    b = {.data = columns.data(), .stride = shape.n};
  }
  MatmulF64().run(shape, alpha, a, b, c);
}

}  // namespace muster::kernels
