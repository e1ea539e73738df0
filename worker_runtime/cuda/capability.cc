#include "worker_runtime/cuda/capability.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster {

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
  return absl::UnavailableError(
      absl::StrCat("device cuda: ", gpu.name, " has compute capability ", gpu.major, ".", gpu.minor,
                   ", and this program's kernels are compiled for ", absl::StrJoin(names, ", "),
                   "; build it with -DMUSTER_CUDA_ARCHITECTURES=", own, ", or use device cpu"));
}

}  // namespace muster
