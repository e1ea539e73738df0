// Norms of a CUDA device beside the host's.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/norm.h"

namespace muster::kernels {
namespace {

using ::muster::testing::ForEverySchedule;
using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::KernelTypes;
using ::muster::testing::kKernelTolerance;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::Widened;

constexpr double kEpsilon = 1e-5;
constexpr NormKind kKinds[] = {NormKind::kLayer, NormKind::kRms};

// Widths with and without whole vectors; rows around a warp's, a block's and a strip's.
std::vector<NormShape> WholeRows() {
  std::vector<NormShape> shapes;
  for (const NormKind kind : kKinds) {
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 8}, {3, 1}, {5, 67}, {9, 264}, {2, 768}, {257, 24}, {300, 37}, {7, 1032}}) {
      shapes.push_back({.kind = kind, .rows = rows, .width = width});
    }
  }
  return shapes;
}
// Heads of usual sizes within lines, and some that begin on no border of a vector.
std::vector<NormShape> Heads() {
  std::vector<NormShape> shapes;
  for (const NormKind kind : kKinds) {
    for (const int64_t width : {64, 80, 96, 128, 7}) {
      shapes.push_back({kind, 3 * 5, width, 3, 5 * width, width});
    }
    shapes.push_back({kind, 4, 64, 2, 3 * 64 + 1, 0});
    shapes.push_back({kind, 1, 64, 1, 192, 3});
  }
  return shapes;
}
std::string NameOf(const NormShape& shape) {
  return absl::StrCat(shape.kind == NormKind::kRms ? "RMS " : "", shape.rows, " x ", shape.width,
                      ", ", shape.per_line, " in ", shape.line, " from ", shape.offset);
}

// On the host, in float, from what kernels see.
struct HostNorm {
  std::vector<float> y, mean, rstd, dx, dgamma, dbeta;
};
template <typename T>
struct NormInputs {
  explicit NormInputs(const NormShape& of)
      : shape(of),
        n(of.rows / of.per_line * of.line),
        x(KernelNumbers<T>(n, "x")),
        dy(KernelNumbers<T>(n, "dy")),
        addend(KernelNumbers<T>(n, "addend")),
        gamma(KernelNumbers<T>(of.width, "gamma")),
        beta(KernelNumbers<T>(of.width, "beta")) {}

  // What lies between the rows is that of `addend`.
  HostNorm OnHost(bool with_addend = true) const {
    HostNorm host{Widened(addend),
                  std::vector<float>(shape.rows),
                  std::vector<float>(shape.rows),
                  Widened(addend),
                  Widened(beta),
                  Widened(beta)};
    const NormKernels<float>::Saved saved = {host.mean.data(), host.rstd.data()};
    const auto& kernels = Norm<float>();
    const auto wide_x = Widened(x), wide_gamma = Widened(gamma), wide_dy = Widened(dy);
    kernels.forward(shape, wide_x.data(), {wide_gamma.data(), Widened(beta).data(), kEpsilon},
                    host.y.data(), saved);
    kernels.input_gradient(shape, wide_x.data(), wide_dy.data(), wide_gamma.data(), saved,
                           with_addend ? host.dx.data() : nullptr, host.dx.data());
    kernels.weight_gradient(shape, wide_x.data(), wide_dy.data(), saved,
                            {host.dgamma.data(), host.dbeta.data(), true});
    return host;
  }

  NormShape shape;
  int64_t n;
  std::vector<T> x, dy, addend, gamma, beta;
};

// The device's arrays of a norm.
template <typename T>
struct OnDevice {
  explicit OnDevice(const NormInputs<T>& in)
      : shape(in.shape),
        x(in.x),
        dy(in.dy),
        addend(in.addend),
        gamma(in.gamma),
        beta(in.beta),
        mean(KernelArray<float>::Poisoned(shape.rows)),
        rstd(KernelArray<float>::Poisoned(shape.rows)),
        scratch(KernelArray<float>::Poisoned(cuda::NormScratch(shape))) {}

  bool is_rms() const { return shape.kind == NormKind::kRms; }
  cuda::NormSaved saved() const { return {is_rms() ? nullptr : mean.data(), rstd.data()}; }
  void Forward(T* from, T* to) const {
    ASSERT_STREQ(cuda::NormForward<T>(nullptr, shape, from,
                                      {gamma.data(), is_rms() ? nullptr : beta.data(), kEpsilon},
                                      to, saved()),
                 nullptr);
  }
  template <typename G>
  void Backward(cuda::NormUpstream<T> in, T* dx, cuda::NormWeights<G> to) const {
    if (is_rms()) to.dbeta = nullptr;
    ASSERT_STREQ((cuda::NormBackward<T, G>(nullptr, shape, in, gamma.data(), saved(), dx, to,
                                           scratch.data())),
                 nullptr);
  }

  NormShape shape;
  const KernelArray<T> x, dy, addend, gamma, beta;
  const KernelArray<float> mean, rstd, scratch;
};

template <typename T>
class NormOnCuda : public KernelTest<T> {
 protected:
  static constexpr double kTolerance = kKernelTolerance<T>;
};
TYPED_TEST_SUITE(NormOnCuda, KernelTypes, KernelTypeNames);

TYPED_TEST(NormOnCuda, OfWholeRowsAndItsGradients) {
  for (const NormShape& shape : WholeRows()) {
    SCOPED_TRACE(NameOf(shape));
    const NormInputs<TypeParam> in(shape);
    const OnDevice<TypeParam> on(in);
    const KernelArray<TypeParam> dgamma(in.beta), dbeta(in.beta), dx(in.addend);
    const auto y = KernelArray<TypeParam>::Poisoned(in.n);
    on.Forward(on.x.data(), y.data());
    // dx takes the place of what is added to it.
    on.template Backward<TypeParam>({on.x.data(), on.dy.data(), dx.data()}, dx.data(),
                                    {dgamma.data(), dbeta.data(), true});
    const HostNorm host = in.OnHost();
    EXPECT_LE(RelativeError(on.rstd.Read(), host.rstd), 3e-6);
    EXPECT_LE(RelativeError(Widened(y.Read()), host.y), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dgamma.Read()), host.dgamma), this->kTolerance);
    // A row of one number has no deviation: rstd is large and the gradient cancels.
    if (shape.width > 1) {
      EXPECT_LE(RelativeError(Widened(dx.Read()), host.dx), this->kTolerance);
    }
    if (on.is_rms()) continue;
    EXPECT_LE(RelativeError(on.mean.Read(), host.mean), 3e-6);
    EXPECT_LE(RelativeError(Widened(dbeta.Read()), host.dbeta), this->kTolerance);
  }
}

// y takes the place of x, and dx that of dy; x is kept elsewhere.
TYPED_TEST(NormOnCuda, OfHeadsInPlaceLeavesWhatIsBetweenThem) {
  for (const NormShape& shape : Heads()) {
    SCOPED_TRACE(NameOf(shape));
    NormInputs<TypeParam> in(shape);
    const OnDevice<TypeParam> on(in);
    const KernelArray<TypeParam> y(in.x), dx(in.dy), dgamma(in.beta), dbeta(in.beta);
    on.Forward(y.data(), y.data());
    on.template Backward<TypeParam>({on.x.data(), dx.data(), nullptr}, dx.data(),
                                    {dgamma.data(), dbeta.data(), true});
    HostNorm host = in.OnHost(/*with_addend=*/false);
    const auto wide_x = Widened(in.x), wide_dy = Widened(in.dy);
    const auto is_of_a_head = [&](int64_t i) {
      const int64_t at = i % shape.line - shape.offset;
      return at >= 0 && at < shape.per_line * shape.width;
    };
    const auto y_read = Widened(y.Read()), dx_read = Widened(dx.Read());
    for (int64_t i = 0; i < in.n; ++i) {
      if (is_of_a_head(i)) continue;
      ASSERT_EQ(y_read[i], wide_x[i]) << i;
      ASSERT_EQ(dx_read[i], wide_dy[i]) << i;
      host.y[i] = wide_x[i], host.dx[i] = wide_dy[i];
    }
    EXPECT_LE(RelativeError(y_read, host.y), this->kTolerance);
    EXPECT_LE(RelativeError(dx_read, host.dx), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dgamma.Read()), host.dgamma), this->kTolerance);
    if (!on.is_rms()) {
      EXPECT_LE(RelativeError(Widened(dbeta.Read()), host.dbeta), this->kTolerance);
    }
  }
}

TYPED_TEST(NormOnCuda, WithoutAddendNorSumsFromBefore) {
  for (const NormKind kind : kKinds) {
    const NormShape shape = {.kind = kind, .rows = 6, .width = 40};
    SCOPED_TRACE(NameOf(shape));
    const NormInputs<TypeParam> in(shape);
    const OnDevice<TypeParam> on(in);
    const auto poisoned = [](size_t n) { return KernelArray<TypeParam>::Poisoned(n); };
    const auto y = poisoned(240), dx = poisoned(240), dgamma = poisoned(40), dbeta = poisoned(40);
    on.Forward(on.x.data(), y.data());
    on.template Backward<TypeParam>({on.x.data(), on.dy.data(), nullptr}, dx.data(),
                                    {dgamma.data(), dbeta.data(), false});
    HostNorm host = in.OnHost(/*with_addend=*/false);
    for (size_t i = 0; i < 40; ++i) host.dgamma[i] -= Widened(in.beta)[i];
    for (size_t i = 0; i < 40; ++i) host.dbeta[i] -= Widened(in.beta)[i];
    EXPECT_LE(RelativeError(Widened(y.Read()), host.y), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dx.Read()), host.dx), this->kTolerance);
    EXPECT_LE(RelativeError(Widened(dgamma.Read()), host.dgamma), this->kTolerance);
    if (on.is_rms()) continue;
    EXPECT_LE(RelativeError(Widened(dbeta.Read()), host.dbeta), this->kTolerance);
  }
}

// Pipelines ask for one now and for the other later. Widths: of one block, and of two. In the place
// of dy as well, in every order of blocks and threads.
TYPED_TEST(NormOnCuda, GradientsHaveTheSameBitsTogetherAndApartAndInPlace) {
  std::vector<NormShape> shapes = {{.kind = NormKind::kRms, .rows = 5, .width = 4107},
                                   {NormKind::kRms, 3 * 19, 24, 3, 100, 12}};
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{37, 72}, {5, 4107}, {19, 8200}}) {
    shapes.push_back({.rows = rows, .width = width});
  }
  for (const NormShape& shape : shapes) {
    SCOPED_TRACE(NameOf(shape));
    const NormInputs<TypeParam> in(shape);
    const OnDevice<TypeParam> on(in);
    const auto y = KernelArray<TypeParam>::Poisoned(in.n);
    on.Forward(on.x.data(), y.data());
    const auto run = [&](bool of_input, bool of_weights, bool in_place = false) {
      const KernelArray<TypeParam> dx(in.dy);
      const auto dgamma = KernelArray<TypeParam>::Poisoned(shape.width);
      const auto dbeta = KernelArray<TypeParam>::Poisoned(shape.width);
      on.template Backward<TypeParam>(
          {on.x.data(), in_place ? dx.data() : on.dy.data(), on.addend.data()},
          of_input ? dx.data() : nullptr,
          {of_weights ? dgamma.data() : nullptr, of_weights ? dbeta.data() : nullptr, false});
      return std::vector{dx.Read(), dgamma.Read(), dbeta.Read()};
    };
    const auto together = run(true, true);
    EXPECT_TRUE(SameBits(run(true, false)[0], together[0]));
    const auto weights = run(false, true);
    EXPECT_TRUE(SameBits(weights[1], together[1]));
    EXPECT_TRUE(SameBits(weights[2], together[2]));
    ForEverySchedule([&] {
      const auto in_place = run(true, true, true);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(in_place[i], together[i])) << i;
    });
  }
}

TYPED_TEST(NormOnCuda, SumsOverRowsHaveTheSameBitsInEverySchedule) {
  const NormShape shape = {.rows = 600, .width = 45};
  const NormInputs<TypeParam> in(shape);
  const OnDevice<TypeParam> on(in);
  const auto y = KernelArray<TypeParam>::Poisoned(in.n);
  on.Forward(on.x.data(), y.data());
  std::vector<TypeParam> before;
  ForEverySchedule([&] {
    const auto dgamma = KernelArray<TypeParam>::Poisoned(45);
    const auto dbeta = KernelArray<TypeParam>::Poisoned(45);
    on.template Backward<TypeParam>({on.x.data(), on.dy.data(), nullptr}, nullptr,
                                    {dgamma.data(), dbeta.data(), false});
    if (before.empty()) before = dgamma.Read();
    EXPECT_TRUE(SameBits(dgamma.Read(), before));
  });
}

// Gradients in float beside activations of any type are what the sums were before they would be
// rounded.
TYPED_TEST(NormOnCuda, GradientsOfWeightsMayBeKeptInFloat) {
  for (const NormShape& shape :
       {NormShape{NormKind::kLayer, 9, 264}, NormShape{NormKind::kLayer, 300, 37},
        NormShape{NormKind::kRms, 300, 37}}) {
    SCOPED_TRACE(NameOf(shape));
    const NormInputs<TypeParam> in(shape);
    const OnDevice<TypeParam> on(in);
    const auto y = KernelArray<TypeParam>::Poisoned(in.n);
    const KernelArray<float> dgamma(Widened(in.beta)), dbeta(Widened(in.beta));
    on.Forward(on.x.data(), y.data());
    on.template Backward<float>({on.x.data(), on.dy.data(), nullptr}, nullptr,
                                {dgamma.data(), dbeta.data(), true});
    const HostNorm host = in.OnHost();
    EXPECT_LE(RelativeError(dgamma.Read(), host.dgamma), 3e-6);
    if (on.is_rms()) continue;
    EXPECT_LE(RelativeError(dbeta.Read(), host.dbeta), 3e-6);
  }
}

}  // namespace
}  // namespace muster::kernels
