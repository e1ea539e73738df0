// The updates of AdamW, Adam and SGD against PyTorch's (optimizer_golden.txt, written by
// make_optimizer_golden.py). Sources: worker_runtime/kernels/adamw.h,
// worker_runtime/kernels/sgd.h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/sgd.h"

namespace muster::kernels {
namespace {

using ::muster::testing::RandomNumbers;
using ::muster::testing::ReadFile;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

constexpr int64_t kCount = 5;

struct GoldenCase {
  std::string line;
  std::string kind;
  std::vector<double> numbers;
};

std::vector<GoldenCase> GoldenCases(const std::string& kind) {
  std::vector<GoldenCase> cases;
  std::istringstream file(ReadFile(absl::StrCat(
      testing::kSourceDirectory, "/tests/unit/worker_runtime/kernels/optimizer_golden.txt")));
  for (GoldenCase c; std::getline(file, c.line);) {
    const std::vector<std::string> words = absl::StrSplit(c.line, ' ');
    if (words.front() != kind) continue;
    c.kind = kind;
    c.numbers.clear();
    for (size_t i = 1; i < words.size(); ++i) {
      c.numbers.push_back(std::strtod(words[i].c_str(), nullptr));
    }
    cases.push_back(c);
  }
  return cases;
}

// Calls `update(gradient, value, t)` for the steps of a case whose results begin at number `first`.
void ExpectSteps(const GoldenCase& c, size_t first,
                 const std::function<void(const double*, double*, int64_t)>& update) {
  std::vector<double> value(kCount);
  for (int64_t i = 0; i < kCount; ++i) value[i] = std::cos(i);
  size_t next = first;
  for (int64_t t = 1; next < c.numbers.size(); ++t) {
    std::vector<double> gradient(kCount);
    for (int64_t i = 0; i < kCount; ++i) gradient[i] = std::sin(1 + 3 * i + 7 * t) * 4;
    update(gradient.data(), value.data(), t);  // whose scale is 1 / 4
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(value[i], c.numbers[next++], 1e-14) << c.line << ", step " << t;
    }
  }
}

TEST(Optimizer, UpdatesAsPyTorchsAdamWAndAdamDo) {
  for (const char* kind : {"adamw", "adam"}) {
    const auto cases = GoldenCases(kind);
    EXPECT_EQ(cases.size(), 16);
    for (const GoldenCase& c : cases) {
      std::vector<double> first(kCount), second(kCount);
      ExpectSteps(c, 5, [&](const double* gradient, double* value, int64_t t) {
        AdamW<double>().update({.learning_rate = c.numbers[0],
                                .beta1 = c.numbers[1],
                                .beta2 = c.numbers[2],
                                .epsilon = c.numbers[3],
                                .weight_decay = c.numbers[4],
                                .decays_gradient = c.kind == "adam",
                                .gradient_scale = 0.25,
                                .step = t},
                               gradient, {value, first.data(), second.data()}, kCount);
      });
    }
  }
}

TEST(Optimizer, UpdatesAsPyTorchsSgdDoes) {
  const auto cases = GoldenCases("sgd");
  EXPECT_EQ(cases.size(), 12);
  for (const GoldenCase& c : cases) {
    std::vector<double> buffer(kCount);
    ExpectSteps(c, 4, [&](const double* gradient, double* value, int64_t) {
      Sgd<double>().update({.learning_rate = c.numbers[0],
                            .momentum = c.numbers[1],
                            .nesterov = c.numbers[2] == 1,
                            .weight_decay = c.numbers[3],
                            .gradient_scale = 0.25},
                           gradient, value, c.numbers[1] == 0 ? nullptr : buffer.data(), kCount);
    });
  }
}

TEST(Sgd, HasTheSameBitsUnderEveryInstructionSetAndInPieces) {
  constexpr int64_t kMany = 101;
  const auto g = RandomNumbers<float>(kMany, "g");
  const auto run = [&](const SgdKernels<float>& kernels, int64_t piece) {
    auto p = RandomNumbers<float>(kMany, "p");
    auto b = RandomNumbers<float>(kMany, "b");
    for (int64_t first = 0; first < kMany; first += piece) {
      kernels.update({.momentum = 0.9, .nesterov = true, .weight_decay = 0.1}, g.data() + first,
                     &p[first], &b[first], std::min(piece, kMany - first));
    }
    return p;
  };
  const auto expected = run(MakeSgd<Isa::kBaseline, float>(), kMany);
  for (const Isa isa : SupportedIsas()) {
    const auto kernels = ForIsa(isa, [](auto set) { return MakeSgd<set(), float>(); });
    EXPECT_TRUE(SameBits(run(kernels, kMany), expected)) << ToString(isa);
    EXPECT_TRUE(SameBits(run(kernels, 7), expected)) << ToString(isa);
  }
}

}  // namespace
}  // namespace muster::kernels
