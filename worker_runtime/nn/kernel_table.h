// One row for each operation, and the tables of kernels that are made of the rows.
#pragma once

#include <tuple>

#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

// What an operation does with a tensor of its arguments.
enum class Role {
  kIn,
  kOut,
  kInOut,
  kScratch,  // memory to work in
  kAsIs,     // its type does not depend on the others'
};

// An operation: its member of Operations, name(kernels), which is the kernel of a class of kernels,
// and the roles of all tensors in the order of the arguments and of their parts().
template <typename Name, auto kMember, Role... kRoles>
struct OperationRow {
  template <typename Form>
  constexpr auto Kernel() const {
    return &Form::template Kernel<kMember, kRoles...>::Run;
  }
  static constexpr auto kOf = kMember;
  Name name;
};

// What stands for kernels that a device lacks. Null: there is nothing.
struct Fallbacks : LinearInPasses {
  static constexpr decltype(Operations::head_loss) HeadLoss = nullptr;
};
// An operation with a kernel in Fallbacks, which all forms have.
template <typename Name, auto kMember>
struct FallbackRow {
  template <typename Form>
  constexpr auto Kernel() const {
    return name(Fallbacks());
  }
  static constexpr auto kOf = kMember;
  Name name;
};

namespace rows {

template <auto kMember, Role... kRoles, typename Name>
constexpr OperationRow<Name, kMember, kRoles...> Row(Name name) {
  return {name};
}
template <auto kMember, typename Name>
constexpr FallbackRow<Name, kMember> Fallback(Name name) {
  return {name};
}

using enum Role;
using Of = Operations;

// A row without roles has kernels that work on any type.
inline constexpr std::tuple kAll = {
    Row<&Of::copy>([](auto k) { return k.Copy; }),
    Row<&Of::cast>([](auto k) { return k.Cast; }),
    Row<&Of::clear>([](auto k) { return k.Clear; }),
    Row<&Of::fill, kOut>([](auto k) { return k.Fill; }),
    Row<&Of::add, kIn, kIn, kOut>([](auto k) { return k.Add; }),
    Row<&Of::scale, kIn, kIn, kOut>([](auto k) { return k.Scale; }),
    Row<&Of::multiply, kIn, kIn, kInOut>([](auto k) { return k.Multiply; }),
    Row<&Of::bias_fill, kIn, kIn, kOut>([](auto k) { return k.BiasFill; }),
    Row<&Of::bias_gradient, kIn, kInOut>([](auto k) { return k.BiasGradient; }),
    Row<&Of::gelu_forward, kIn, kOut>([](auto k) { return k.GeluForward; }),
    Row<&Of::gelu_backward, kIn, kIn, kOut>([](auto k) { return k.GeluBackward; }),
    Row<&Of::swiglu_forward, kIn, kOut>([](auto k) { return k.SwiGluForward; }),
    Row<&Of::swiglu_backward, kIn, kIn, kOut>([](auto k) { return k.SwiGluBackward; }),
    Fallback<&Of::linear_forward>([](auto k) { return k.LinearForward; }),
    Fallback<&Of::linear_gelu>([](auto k) { return k.LinearGelu; }),
    Fallback<&Of::gelu_linear_input>([](auto k) { return k.GeluLinearInput; }),
    Fallback<&Of::linear_weight>([](auto k) { return k.LinearWeight; }),
    // A norm may write parts of y and dx.
    Row<&Of::norm_forward, kIn, kIn, kOut, kIn, kInOut>([](auto k) { return k.NormForward; }),
    Row<&Of::norm_backward, kIn, kIn, kIn, kIn, kIn, kInOut, kInOut, kInOut>(
        [](auto k) { return k.NormBackward; }),
    Row<&Of::embedding_forward, kIn, kIn, kOut>([](auto k) { return k.EmbeddingForward; }),
    Row<&Of::embedding_gradient, kIn, kInOut, kInOut>([](auto k) { return k.EmbeddingGradient; }),
    Row<&Of::rotary, kInOut>([](auto k) { return k.Rotary; }),
    Row<&Of::attention_forward, kIn, kOut, kOut, kScratch>(
        [](auto k) { return k.AttentionForward; }),
    Row<&Of::attention_backward, kIn, kIn, kIn, kIn, kOut, kScratch>(
        [](auto k) { return k.AttentionBackward; }),
    Row<&Of::squares, kIn, kAsIs>([](auto k) { return k.Squares; }),
    Row<&Of::tree_sum>([](auto k) { return k.SumByTree; }),
    Row<&Of::decide_update>([](auto k) { return k.DecideUpdate; }),
    Row<&Of::adamw, kAsIs, kIn, kInOut, kInOut, kInOut, kAsIs>([](auto k) { return k.AdamW; }),
    Row<&Of::sgd, kAsIs, kIn, kInOut, kInOut>([](auto k) { return k.Sgd; }),
    Row<&Of::round_by_draws>([](auto k) { return k.RoundByDraws; }),
    Row<&Of::cross_entropy, kIn, kOut, kOut, kAsIs>([](auto k) { return k.CrossEntropy; }),
    Fallback<&Of::head_loss>([](auto k) { return k.HeadLoss; }),
};
static_assert(std::tuple_size_v<decltype(kAll)> == sizeof(Of) / sizeof(Of::copy));

// Each member of a table from its row.
template <typename Choose>
constexpr Operations TableBy(Choose choose) {
  Operations table = {};
  std::apply([&](const auto&... row) { ((table.*row.kOf = choose(row)), ...); }, kAll);
  return table;
}

}  // namespace rows

// The kernels of a class that names each of them.
template <typename Kernels>
constexpr Operations TableOf() {
  return rows::TableBy([](const auto& row) { return row.name(Kernels()); });
}

// Kernels that a form makes of the rows: Form::Kernel<member, roles…>::Run.
template <typename Form>
constexpr Operations TableOfForm() {
  return rows::TableBy([](const auto& row) { return row.template Kernel<Form>(); });
}

}  // namespace muster
