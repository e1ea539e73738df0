// Products in float by oneDNN, kept to the thread of the caller.
#include "worker_runtime/kernels/matmul.h"

#include <dnnl.h>

#include <string>
#include <vector>

#include "proto/base/fatal_error.h"
#include "worker_runtime/kernels/matmul_f64.h"

// Calls of the OpenMP runtime that oneDNN is linked with, which need not be this compiler's own.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace muster::kernels {
namespace {

// One product, one thread: OpenMP's setting is the calling thread's, and is put back.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
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

}  // namespace

void Matmul(MatmulShape shape, float alpha, MatmulOperand<float> a, MatmulOperand<float> b,
            MatmulResult<float> c) {
  if (shape.m == 0 || shape.n == 0) return;
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(Flag(a.transpose), Flag(b.transpose), shape.m, shape.n, shape.k, alpha, a.data,
                 a.stride, b.data, b.stride, c.beta, c.data, c.stride);
  if (status == dnnl_success) return;
  FatalError("oneDNN cannot multiply matrices of " + std::to_string(shape.m) + " x " +
             std::to_string(shape.k) + " and " + std::to_string(shape.k) + " x " +
             std::to_string(shape.n) + ": " + Why(status));
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
