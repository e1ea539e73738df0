// Which instruction set the CPU kernels use, chosen at run time.
//
// Every `<op>_host.cc` is compiled once per instruction set (worker_runtime/CMakeLists.txt) and
// exports one table of functions per element type. All variants compute in the same 512-bit packs
// (pack.h), so they return the same bits; only products (matmul.h) may differ between machines.
#pragma once

#include <type_traits>

#include "absl/strings/string_view.h"

namespace muster::kernels {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Whether kernels were compiled for `isa`: CMake gives a bit for each set that they were. The first
// build leaves out those of other processors.
constexpr bool IsBuilt(Isa isa) {
  return (unsigned{MUSTER_KERNEL_ISAS} >> static_cast<unsigned>(isa) & 1) != 0;
}

// The widest set that was built, that this processor and kernel offer, and that ONEDNN_MAX_CPU_ISA
// allows: oneDNN, which computes the products, heeds it too, so that one variable makes different
// machines alike.
// Threads: thread-safe.
Isa BestIsa();

// "baseline", "avx2" or "avx512".
absl::string_view ToString(Isa isa);

// Whether there are kernels of `isa`, and this processor can run them.
bool IsSupported(Isa isa);

// Calls `make(std::integral_constant<Isa, ...>)` for `isa`, or for the baseline where `isa` was not
// built; every table accessor is written with it.
template <typename Make>
auto ForIsa(Isa isa, Make make) {
  if constexpr (IsBuilt(Isa::kAvx512)) {
    if (isa == Isa::kAvx512) return make(std::integral_constant<Isa, Isa::kAvx512>());
  }
  if constexpr (IsBuilt(Isa::kAvx2)) {
    if (isa == Isa::kAvx2) return make(std::integral_constant<Isa, Isa::kAvx2>());
  }
  return make(std::integral_constant<Isa, Isa::kBaseline>());
}

}  // namespace muster::kernels
