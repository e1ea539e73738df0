// Numbers drawn from a seed, for schedules.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::testing {

// splitmix64. Source: Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t Below(size_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace muster::testing
