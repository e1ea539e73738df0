// Kernels for arrays of 16 bits, made of those for f32: each widens what it reads, computes in f32
// and rounds what it writes, once. Arrays of f32 may stand beside those of 16 bits: gradients of
// weights, statistics of rows.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/tensor.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/operation_arguments.h"

namespace muster {

// The arguments of one operation in f32; results are rounded when this ends. On meta the copies
// are only taken.
//
// Copies lie in the queue's memory. For queues without one each thread has a pool, of the first
// device that asks on it: those queues are the host's.
//
// Threads: thread-compatible.
class WideCopies {
 public:
  // `wide` casts. `roles` of the tensors in the order of the calls; both outlive this.
  WideCopies(const Operations& wide, Queue& queue, absl::Span<const Role> roles)
      : wide_(wide), queue_(queue), roles_(roles) {}
  WideCopies(const WideCopies&) = delete;
  WideCopies& operator=(const WideCopies&) = delete;
  ~WideCopies();

  // What is of another type or left out is passed on as it is.
  Tensor operator()(const Tensor& x);
  template <typename Other>
  Other operator()(const Other& other) {
    return other;
  }

 private:
  const Operations& wide_;
  Queue& queue_;
  absl::Span<const Role> roles_;  // of the tensors to come
  std::vector<std::pair<Tensor, Tensor>> results_;
};

// The form (kernel_table.h) for 16 bits of the kernels of `kWide`.
template <const Operations& kWide>
struct NarrowForm {
  template <auto kMember, Role... kRoles>
  struct Kernel;
  template <typename Result, typename... Args, Result (*Operations::*kMember)(Queue&, Args...),
            Role... kRoles>
  struct Kernel<kMember, kRoles...> {
    static Result Run(Queue& queue, Args... args) {
      if constexpr (sizeof...(kRoles) == 0) {
        return (kWide.*kMember)(queue, args...);
      } else {
        static_assert(sizeof...(kRoles) == (NumTensors<std::decay_t<Args>>() + ...));
        static constexpr std::array kAll = {kRoles...};
        WideCopies copies(kWide, queue, kAll);
        const std::tuple<decltype(MapParts(args, copies))...> wide{MapParts(args, copies)...};
        return std::apply(
            [&](const auto&... each) {
              return (kWide.*kMember)(queue, FromParts<std::decay_t<Args>>(each)...);
            },
            wide);
      }
    }
  };
};

}  // namespace muster
