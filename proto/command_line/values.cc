#include "proto/command_line/values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace muster::command_line {

absl::Status Expected(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

namespace {

// SimpleAtoi and SimpleAtod would trim blanks and take a plus.
bool IsPlain(absl::string_view text) {
  return !text.empty() && text[0] != '+' &&
         std::none_of(text.begin(), text.end(), absl::ascii_isspace);
}

template <typename Integer>
absl::StatusOr<Integer> ParseWhole(const std::string& text) {
  Integer value = 0;
  if (IsPlain(text) && absl::SimpleAtoi(text, &value)) return value;
  return Expected("a whole number");
}

}  // namespace

absl::StatusOr<int> ParseInteger(const std::string& text) { return ParseWhole<int>(text); }

absl::StatusOr<int64_t> ParseInt64(const std::string& text) { return ParseWhole<int64_t>(text); }

absl::StatusOr<uint64_t> ParseUint64(const std::string& text) {
  absl::StatusOr<uint64_t> value = ParseWhole<uint64_t>(text);
  if (value.ok()) return value;
  return Expected(
      absl::StrCat("a whole number between 0 and ", std::numeric_limits<uint64_t>::max()));
}

absl::StatusOr<double> ParseNumber(const std::string& text) {
  double value = 0;
  if (IsPlain(text) && absl::SimpleAtod(text, &value) && std::isfinite(value)) return value;
  return Expected("a number, such as 0.1 or 3e-4");
}

absl::StatusOr<std::string> ParseText(const std::string& text) { return text; }

absl::StatusOr<std::string> ParseName(const std::string& text) {
  if (text.empty()) return Expected("a value after the =");
  return text;
}

absl::StatusOr<bool> ParseBool(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (lower == no) return false;
  }
  return Expected("1 or 0 (true, false, yes, no, on and off are understood too)");
}

absl::StatusOr<bool> ParseAuthentication(const std::string& text) {
  return ParseChoice<bool>(text, {{"secret", true}, {"none", false}});
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return Expected("seconds, or a time with its unit such as 500ms, 30s or 10m");
  }
  // Clocks count nanoseconds in 64 bits, which end after 292 years.
  constexpr int kDaysMax = 36500;
  if (std::isnan(seconds) || absl::AbsDuration(duration) > absl::Hours(24 * kDaysMax)) {
    return Expected("a time of a century at most, such as 30, 500ms or 10m");
  }
  return absl::Trunc(duration, absl::Microseconds(1));
}

std::function<absl::Status(const std::string&)> IntoBetween(int64_t low, int64_t high,
                                                            int64_t& out) {
  return [low, high, &out](const std::string& text) {
    const absl::StatusOr<int64_t> value = ParseInt64(text);
    if (!value.ok()) return value.status();
    if (*value < low || *value > high) {
      return Expected(absl::StrCat("a whole number between ", low, " and ", high));
    }
    out = *value;
    return absl::OkStatus();
  };
}

}  // namespace muster::command_line
