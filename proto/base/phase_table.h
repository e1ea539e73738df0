// A state machine's transitions as a constexpr table: what may follow what, and the text of it.
//
//   constexpr std::array kTransitions = {Transition{JobPhase::kForming, JobPhase::kRunning}, …};
//
// `Phase` is an enum class with a ToString in its own namespace. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {

template <typename Phase>
struct Transition {
  Phase from;
  Phase to;
};
template <typename Phase>
Transition(Phase, Phase) -> Transition<Phase>;

template <typename Phase, size_t kSize>
bool IsInTable(const std::array<Transition<Phase>, kSize>& table, Phase from, Phase to) {
  return std::any_of(table.begin(), table.end(),
                     [&](const Transition<Phase>& t) { return t.from == from && t.to == to; });
}

// One line "from -> to" for each.
template <typename Phase, size_t kSize>
std::string PrintTable(const std::array<Transition<Phase>, kSize>& table) {
  std::string text;
  for (const Transition<Phase>& t : table) {
    absl::StrAppend(&text, ToString(t.from), " -> ", ToString(t.to), "\n");
  }
  return text;
}

}  // namespace muster
