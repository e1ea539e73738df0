// The identifiers of Muster as distinct types, so that two integers side by side cannot be swapped.
//
// Pure values. Text forms are for people and logs; they are never parsed back.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster {

// An integer that only mixes with its own kind. `Tag` names the kind.
template <typename Tag, typename Rep = int64_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;
  constexpr Id Next() const { return Id(value_ + 1); }

 private:
  Rep value_ = 0;
};

// One agreed membership, numbered from 0, never reused. `kNoRound` before the first.
using Round = Id<struct RoundTag>;
inline constexpr Round kNoRound{-1};

// One life of a job at a server: a run id used again gets a new instance. 0 = not known yet.
using Instance = Id<struct InstanceTag>;

// One life of a server with one state; a restarted server has a higher term. 0 = not known yet.
using ServerTerm = Id<struct ServerTermTag>;

// Random id of one life of an agent process; tells a restart from a retry. 0 is never used.
using Incarnation = Id<struct IncarnationTag, uint64_t>;

// A worker's index among all workers of the round, and among those of its node. Not stable across
// rounds.
using Rank = Id<struct RankTag, int>;
using LocalRank = Id<struct LocalRankTag, int>;

// A node's index in the round.
using NodeRank = Id<struct NodeRankTag, int>;

template <typename Tag, typename Rep>
std::string ToString(Id<Tag, Rep> id) {
  return absl::StrCat(id.value());
}
inline std::string ToString(Incarnation id) { return absl::StrFormat("%016x", id.value()); }

}  // namespace muster
