#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

bool IsSupported(Isa isa) {
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
  static const Isa best = IsSupported(Isa::kAvx512) ? Isa::kAvx512
                          : IsSupported(Isa::kAvx2) ? Isa::kAvx2
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
