// Checks of decoded fields: the first that fails is kept, so that a decoder reads like a list of
// fields. Peers' messages are refused with kInvalidArgument and never trip a MUSTER_CHECK.
//
// Threads: pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace muster {

inline int64_t EncodeDuration(absl::Duration duration) {
  return absl::ToInt64Microseconds(std::max(duration, absl::ZeroDuration()));
}

class WireCheck {
 public:
  const absl::Status& status() const { return status_; }

  void Require(bool condition, absl::string_view field, absl::string_view why) {
    if (condition || !status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("malformed message: ", field, " ", why));
  }

  template <typename T>
  T Range(absl::string_view field, T value, T min, T max) {
    Require(value >= min && value <= max, field,
            absl::StrCat("is ", value, ", not in ", min, "..", max));
    return value;
  }

  // A count, rank or identifier: not negative.
  template <typename T>
  T Count(absl::string_view field, T value) {
    return Range<T>(field, value, 0, std::numeric_limits<T>::max());
  }

  std::string Text(absl::string_view field, const std::string& value, size_t max_bytes) {
    Require(value.size() <= max_bytes, field,
            absl::StrCat("has ", value.size(), " bytes, more than ", max_bytes));
    return status_.ok() ? value : std::string();
  }

  absl::Duration Duration(absl::string_view field, int64_t microseconds) {
    Count(field, microseconds);
    if (microseconds == std::numeric_limits<int64_t>::max()) return absl::InfiniteDuration();
    return absl::Microseconds(microseconds);
  }

  // Whether a list may be read at all; a decoder skips it otherwise.
  bool List(absl::string_view field, int size, int max) {
    Require(size <= max, field, absl::StrCat("has ", size, " entries, more than ", max));
    return status_.ok();
  }

  absl::StatusCode Code(absl::string_view field, int value) {
    return static_cast<absl::StatusCode>(Range(field, value, 0, 16));
  }

 private:
  absl::Status status_;
};

}  // namespace muster
