// Arguments of operations with other tensors in place of their own.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muster/tensor.h"

namespace muster {

template <typename Argument>
concept HasParts = requires(const Argument& argument) {
  argument.parts();
};

// map(part) of each of the argument's parts, in their order, or map(argument).
template <typename Argument, typename Map>
auto MapParts(const Argument& argument, Map& map) {
  if constexpr (HasParts<Argument>) {
    return std::apply(
        [&map](const auto&... parts) { return std::tuple<decltype(map(parts))...>{map(parts)...}; },
        argument.parts());
  } else {
    return map(argument);
  }
}

// The argument of which these are the parts. They outlive it.
template <typename Argument, typename Mapped>
decltype(auto) FromParts(const Mapped& mapped) {
  if constexpr (HasParts<Argument>) {
    return std::apply([](const auto&... parts) { return Argument{parts...}; }, mapped);
  } else {
    return (mapped);
  }
}

// How many of an argument's parts are tensors.
template <typename Argument>
constexpr size_t NumTensors() {
  if constexpr (HasParts<Argument>) {
    return []<typename... Parts>(const std::tuple<Parts...>*) {
      return (NumTensors<std::decay_t<Parts>>() + ...);
    }(static_cast<decltype(std::declval<Argument>().parts())*>(nullptr));
  } else {
    return std::is_same_v<Argument, Tensor> ? 1 : 0;
  }
}

}  // namespace muster
