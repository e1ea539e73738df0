#include "worker_runtime/train/figures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::train {
namespace {

// Writes at least three digits: 1.21, 38.2, 812. Rounds first, so that 9.999 is 10.0 and not 10.00.
std::string ThreeDigits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

// `value` in units of a power of 1000.
struct Scaled {
  double value = 0;
  size_t power = 0;
};

Scaled ScaleByThousands(double value, size_t largest_power) {
  Scaled scaled{value};
  while (scaled.power < largest_power && scaled.value >= 999.5) {
    scaled.value /= 1000;
    ++scaled.power;
  }
  return scaled;
}

std::string WithUnit(double value, const std::array<const char*, 5>& units) {
  const Scaled scaled = ScaleByThousands(std::max(value, 0.0), units.size() - 1);
  return absl::StrCat(
      scaled.power == 0 ? absl::StrFormat("%.0f", scaled.value) : ThreeDigits(scaled.value),
      units[scaled.power]);
}

}  // namespace

std::string ShortCount(double count) { return WithUnit(count, {"", "k", "M", "G", "T"}); }

std::string ShortBytes(double bytes) { return WithUnit(bytes, {" B", " kB", " MB", " GB", " TB"}); }

std::string ShortDuration(absl::Duration duration) {
  const double micros = std::max(0.0, absl::ToDoubleMicroseconds(duration));
  const Scaled scaled = ScaleByThousands(micros, 2);
  constexpr std::array<const char*, 3> kUnits = {" us", " ms", " s"};
  return absl::StrCat(ThreeDigits(scaled.value), kUnits[scaled.power]);
}

std::string ClockTime(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "-";
  const int64_t total = std::max<int64_t>(0, std::llround(absl::ToDoubleSeconds(duration)));
  const int64_t days = total / 86400;
  const int64_t hours = total / 3600 % 24;
  const int64_t minutes = total / 60 % 60;
  const int64_t seconds = total % 60;
  if (total < 3600) return absl::StrFormat("%d:%02d", minutes, seconds);
  const std::string clock = absl::StrFormat("%d:%02d:%02d", hours, minutes, seconds);
  return days == 0 ? clock : absl::StrCat(days, "d ", clock);
}

std::string Percent(double part, double whole) {
  if (!(whole > 0)) return "-";
  const double percent = 100 * part / whole;
  return percent < 9.95 ? absl::StrFormat("%.1f%%", percent) : absl::StrFormat("%.0f%%", percent);
}

std::string Counted(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace muster::train
