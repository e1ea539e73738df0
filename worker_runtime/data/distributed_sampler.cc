// Which examples a rank sees in an epoch, as torch.utils.data.DistributedSampler deals them.
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

// The number of examples from which on torch.randperm draws 64 bits at a time.
constexpr int64_t kExamplesEnd = 4294967295 / 20;

absl::Status Validate(const DistributedSamplerOptions& options, int64_t samples, int64_t epoch) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  if (options.shuffle && options.num_examples >= kExamplesEnd) {
    return refuse("cannot shuffle ", options.num_examples, " examples; fewer than ", kExamplesEnd,
                  " are possible");
  }
  if (samples >= kExamplesEnd) {
    return refuse(options.num_examples, " examples are ", samples, " for each of ", options.size,
                  " ranks; fewer than ", kExamplesEnd, " are possible");
  }
  // torch takes seeds from -2^63 to 2^64 - 1, the negative ones modulo 2^64.
  if (epoch > 0 && options.seed + static_cast<uint64_t>(epoch) < options.seed) {
    return refuse("seed ", options.seed, " + epoch ", epoch, " is more than 2^64 - 1");
  }
  return absl::OkStatus();
}

// torch.randperm(count) with a generator of this seed.
//
// Source: pytorch, ATen/native/TensorFactories.cpp (randperm_cpu, the path for small counts) and
// ATen/core/MT19937RNGEngine.h (the seed's low 32 bits, the generator of std::mt19937)
std::vector<uint32_t> RandomPermutation(int64_t count, uint64_t seed) {
  std::vector<uint32_t> permutation(count);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (int64_t i = 0; i + 1 < count; ++i) {
    std::swap(permutation[i], permutation[i + random() % (count - i)]);
  }
  return permutation;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> DistributedSample(const DistributedSamplerOptions& options,
                                                       int64_t epoch) {
  const int64_t count = options.num_examples;
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not one of ", options.size));
  }
  if (count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of examples is ", count, ", less than 0"));
  }
  const bool pad = !options.drop_last && count % options.size != 0;
  const int64_t samples = count / options.size + (pad ? 1 : 0);
  MUSTER_RETURN_IF_ERROR(Validate(options, samples, epoch));
  std::vector<uint32_t> permutation;
  if (options.shuffle) {
    permutation = RandomPermutation(count, options.seed + static_cast<uint64_t>(epoch));
  }
  std::vector<int64_t> taken(samples);
  for (int64_t i = 0; i < samples; ++i) {
    // Beyond the end the list is repeated as often as needed.
    const int64_t place = (options.rank + i * options.size) % count;
    taken[i] = options.shuffle ? int64_t{permutation[place]} : place;
  }
  return taken;
}

}  // namespace muster
