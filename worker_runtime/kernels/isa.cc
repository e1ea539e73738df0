#include "worker_runtime/kernels/isa.h"

#include <dnnl.h>

namespace muster::kernels {
namespace {

// The sets of oneDNN are bits, a wider one with those of the narrower.
bool IsAllowed(Isa isa) {
  const int allowed = dnnl_get_effective_cpu_isa();
  const int needed = isa == Isa::kAvx512 ? dnnl_cpu_isa_avx512_core : dnnl_cpu_isa_avx2;
  return isa == Isa::kBaseline || (allowed & needed) == needed;
}

bool CanUse(Isa isa) { return IsSupported(isa) && IsAllowed(isa); }

}  // namespace

bool IsSupported(Isa isa) {
  if (!IsBuilt(isa)) return false;
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}

Isa BestIsa() {
  static const Isa best = CanUse(Isa::kAvx512) ? Isa::kAvx512
                          : CanUse(Isa::kAvx2) ? Isa::kAvx2
                                               : Isa::kBaseline;
  return best;
}

absl::string_view ToString(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace muster::kernels
