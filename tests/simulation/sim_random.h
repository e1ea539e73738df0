// The only source of chance in simulations: everything follows from the seed, on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace muster::simulation {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : engine_(seed) {}

  uint64_t Bits() { return engine_(); }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }  // [0, 1)
  bool Chance(double probability) { return Unit() < probability; }
  int Between(int low, int high) { return low + static_cast<int>(Unit() * (high - low + 1)); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low + absl::Microseconds(
                     static_cast<int64_t>(Unit() * absl::ToDoubleMicroseconds(high - low)));
  }
  absl::Duration Exponential(absl::Duration mean) {
    return absl::Microseconds(
        static_cast<int64_t>(-std::log(1 - Unit()) * absl::ToDoubleMicroseconds(mean)));
  }

 private:
  std::mt19937_64
      engine_;  // the standard fixes its numbers; those of std distributions it does not
};

}  // namespace muster::simulation
