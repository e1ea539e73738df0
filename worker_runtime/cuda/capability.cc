#include "worker_runtime/cuda/capability.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster {

namespace {

// Asynchronous copies and products of bf16 came with it. Source: PTX ISA, cp.async and mma
constexpr int kOldest = 80;

}  // namespace

absl::Status CheckCapability(const CudaProperties& gpu, absl::string_view architectures) {
  const int own = gpu.major * 10 + gpu.minor;
  std::vector<std::string> names;
  int last = 0;
  for (const absl::string_view word : absl::StrSplit(architectures, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &last)) continue;
    if (last / 10 == gpu.major && last <= own) return absl::OkStatus();
    names.push_back(absl::StrCat(last / 10, ".", last % 10));
  }
  if (own >= last) return absl::OkStatus();
  const std::string what = absl::StrCat("device cuda: ", gpu.name, " has compute capability ",
                                        gpu.major, ".", gpu.minor, ", and ");
  if (own < kOldest) {
    return absl::UnavailableError(
        absl::StrCat(what, "the kernels need 8.0 (an A100) or newer; use device cpu"));
  }
  return absl::UnavailableError(
      absl::StrCat(what, "this program's kernels are compiled for ", absl::StrJoin(names, ", "),
                   "; build it where such a GPU is, or with MUSTER_CUDA_ARCHITECTURES=", own,
                   " deploy/dev install PREFIX, or use device cpu"));
}

}  // namespace muster
