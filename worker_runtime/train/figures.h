// Numbers as people read them.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace muster::train {

// Three digits and a unit of thousands: "7", "812", "38.2k", "1.21M", "4.70G".
std::string ShortCount(double count);

// "812 B", "38.2 kB", "1.21 MB": units of 1000 bytes.
std::string ShortBytes(double bytes);

// Three digits of the unit that fits: "7.3 us", "1.21 ms", "250 ms", "12.5 s".
std::string ShortDuration(absl::Duration duration);

// "0:07", "12:38", "3:02:10", "2d 3:02:10": whole seconds, rounded.
std::string ClockTime(absl::Duration duration);

// "7.3%", "98%"; "-" if `whole` is not positive.
std::string Percent(double part, double whole);

// "1 rank", "2 ranks".
std::string Counted(int64_t count, const std::string& noun);

}  // namespace muster::train
