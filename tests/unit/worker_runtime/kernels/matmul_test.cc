#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <thread>

#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/matmul.h"

extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace muster::kernels {
namespace {

using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;

struct Case {
  MatmulShape shape;
  Transpose a = Transpose::kNo;
  Transpose b = Transpose::kNo;
};

std::string Describe(const Case& c) {
  return absl::StrCat(c.shape.m, " x ", c.shape.n, " x ", c.shape.k,
                      c.a == Transpose::kYes ? " T" : " N", c.b == Transpose::kYes ? "T" : "N");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const MatmulShape shape :
       {MatmulShape{1, 1, 1}, MatmulShape{3, 17, 5}, MatmulShape{17, 1, 257}, MatmulShape{1, 64, 3},
        MatmulShape{65, 33, 129}}) {
    for (const Transpose a : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose b : {Transpose::kNo, Transpose::kYes}) cases.push_back({shape, a, b});
    }
  }
  return cases;
}

// Operands with rows longer than they need to be, `offset` elements into their memory.
template <typename T>
std::vector<T> RunMatmul(const Case& c, T beta, int64_t offset = 0) {
  constexpr int64_t kPadding = 3;
  const bool ta = c.a == Transpose::kYes;
  const bool tb = c.b == Transpose::kYes;
  const int64_t stride_a = (ta ? c.shape.m : c.shape.k) + kPadding;
  const int64_t stride_b = (tb ? c.shape.k : c.shape.n) + kPadding;
  std::vector<T> a(offset), b(offset), out(offset);
  const auto append = [](std::vector<T>& to, const std::vector<T>& numbers) {
    to.insert(to.end(), numbers.begin(), numbers.end());
  };
  append(a, RandomNumbers<T>((ta ? c.shape.k : c.shape.m) * stride_a, "a"));
  append(b, RandomNumbers<T>((tb ? c.shape.n : c.shape.k) * stride_b, "b"));
  append(out, RandomNumbers<T>(c.shape.m * c.shape.n, "c"));
  Matmul(c.shape, T(0.5), {a.data() + offset, stride_a, c.a}, {b.data() + offset, stride_b, c.b},
         MatmulResult<T>{out.data() + offset, c.shape.n, beta});
  return {out.begin() + offset, out.end()};
}

std::vector<double> Expected(const Case& c, double beta) {
  const bool ta = c.a == Transpose::kYes;
  const bool tb = c.b == Transpose::kYes;
  const int64_t stride_a = (ta ? c.shape.m : c.shape.k) + 3;
  const int64_t stride_b = (tb ? c.shape.k : c.shape.n) + 3;
  const auto a = RandomNumbers<double>((ta ? c.shape.k : c.shape.m) * stride_a, "a");
  const auto b = RandomNumbers<double>((tb ? c.shape.n : c.shape.k) * stride_b, "b");
  auto out = RandomNumbers<double>(c.shape.m * c.shape.n, "c");
  for (int64_t i = 0; i < c.shape.m; ++i) {
    for (int64_t j = 0; j < c.shape.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < c.shape.k; ++p) {
        sum += a[ta ? p * stride_a + i : i * stride_a + p] *
               b[tb ? j * stride_b + p : p * stride_b + j];
      }
      out[i * c.shape.n + j] = 0.5 * sum + beta * out[i * c.shape.n + j];
    }
  }
  return out;
}

TEST(Matmul, EqualsItsDefinitionForOddShapesAndTransposes) {
  for (const Case& c : Cases()) {
    for (const double beta : {0.0, 1.0}) {
      const auto expected = Expected(c, beta);
      EXPECT_LT(RelativeError(RunMatmul<double>(c, beta), expected), 1e-14) << Describe(c);
      // sqrt(k) roundings of 2^-24 each, k <= 257.
      EXPECT_LT(RelativeError(RunMatmul<float>(c, beta), expected), 2e-6) << Describe(c);
    }
  }
}

TEST(Matmul, OverwritesNotANumberWhenBetaIsZero) {
  const float a = 2, b = 3;
  float c = NAN;
  Matmul({1, 1, 1}, 1.0f, {&a, 1}, {&b, 1}, MatmulResult<float>{&c, 1});
  EXPECT_EQ(c, 6);
  const double wide_a = 2, wide_b = 3;
  double wide_c = NAN;
  Matmul({1, 1, 1}, 1.0, {&wide_a, 1}, {&wide_b, 1}, MatmulResult<double>{&wide_c, 1});
  EXPECT_EQ(wide_c, 6);
}

TEST(Matmul, HasTheSameBitsRunAfterRunAndWhereverTheMemoryLies) {
  for (const Case& c : Cases()) {
    const auto expected = RunMatmul<float>(c, 1);
    for (const int64_t offset : {0, 1, 3, 8}) {
      EXPECT_TRUE(SameBits(RunMatmul<float>(c, 1, offset), expected))
          << Describe(c) << " + " << offset;
    }
  }
}

TEST(Matmul, HasTheSameBitsWhateverOpenMpIsSetToAndLeavesItAlone) {
  const Case large = {{192, 160, 300}};
  const auto expected = RunMatmul<float>(large, 0);
  const int before = omp_get_max_threads();
  omp_set_num_threads(4);
  const auto actual = RunMatmul<float>(large, 0);
  EXPECT_EQ(omp_get_max_threads(), 4);
  omp_set_num_threads(before);
  EXPECT_TRUE(SameBits(actual, expected));
}

// The numbers of RunMatmul rounded to bf16, with rows as long.
struct InBf16 {
  InBf16(const char* name, int64_t stored_rows, int64_t row)
      : bits(static_cast<size_t>(stored_rows * (row + 3))), wide(bits.size()), stride(row + 3) {
    const auto numbers = RandomNumbers<float>(static_cast<int64_t>(bits.size()), name);
    Cast().f32_to_bf16(numbers.data(), bits.data(), static_cast<int64_t>(bits.size()));
    Cast().bf16_to_f32(bits.data(), wide.data(), static_cast<int64_t>(bits.size()));
  }
  std::vector<uint16_t> bits;
  std::vector<float> wide;
  int64_t stride;
};

TEST(Matmul, OfBf16AddsUpInFloatAndRoundsOnce) {
  if (BestIsa() != Isa::kAvx512) GTEST_SKIP() << "oneDNN has no code for it without AVX-512";
  for (const Case& c : Cases()) {
    const auto [m, n, k] = c.shape;
    const bool ta = c.a == Transpose::kYes, tb = c.b == Transpose::kYes;
    const InBf16 a("a", ta ? k : m, ta ? m : k), b("b", tb ? n : k, tb ? k : n);
    const InBf16 before("c", m, n);
    for (const float beta : {0.0f, 1.0f}) {
      const int64_t stride = before.stride;
      std::vector<float> expected = before.wide, sum = before.wide;
      std::vector<uint16_t> rounded = before.bits;
      Matmul(c.shape, 1.0f, {a.wide.data(), a.stride, c.a}, {b.wide.data(), b.stride, c.b},
             MatmulResult<float>{expected.data(), stride, beta});
      Matmul(c.shape, {a.bits.data(), a.stride, c.a}, {b.bits.data(), b.stride, c.b},
             MatmulResult<float>{sum.data(), stride, beta});
      Matmul(c.shape, {a.bits.data(), a.stride, c.a}, {b.bits.data(), b.stride, c.b},
             MatmulResult<uint16_t>{rounded.data(), stride, static_cast<uint16_t>(beta)});
      EXPECT_LT(RelativeError(sum, expected), 2e-6) << Describe(c);
      std::vector<float> narrow(rounded.size());
      Cast().bf16_to_f32(rounded.data(), narrow.data(), static_cast<int64_t>(rounded.size()));
      EXPECT_LT(RelativeError(narrow, expected), 1.0 / 256) << Describe(c);
    }
  }
}

TEST(Matmul, HasTheSameBitsInSeveralThreadsAtOnce) {
  const Case c = {{65, 129, 77}};
  const auto expected = RunMatmul<float>(c, 0);
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = RunMatmul<float>(c, 0); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_TRUE(SameBits(result, expected));
}

volatile sig_atomic_t signals_handled = 0;

// A handler of the program on the stack of whoever is interrupted, every 50 microseconds.
class SignalsAllTheTime {
 public:
  SignalsAllTheTime() {
    signals_handled = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { signals_handled = signals_handled + 1; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &before_);
    const itimerval often = {.it_interval = {.tv_sec = 0, .tv_usec = 50},
                             .it_value = {.tv_sec = 0, .tv_usec = 50}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~SignalsAllTheTime() {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_ = {};
};

TEST(Matmul, IsNotDisturbedByTheSignalsOfTheProgram) {
  const Case c = {{65, 129, 77}};
  const auto expected = RunMatmul<float>(c, 0);
  const SignalsAllTheTime signals;
  for (int products = 0; products < 2000 || signals_handled < 500; ++products) {
    ASSERT_TRUE(SameBits(RunMatmul<float>(c, 0), expected)) << products;
  }
}

}  // namespace
}  // namespace muster::kernels
