// The usual values of options: text -> plain values.
//
// Errors:  kInvalidArgument saying what was expected.
// Threads: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "proto/base/nearest_name.h"

namespace muster::command_line {

// The error of a value that is not `what`.
absl::Status Expected(absl::string_view what);

// Digits with an optional minus, nothing else: no blanks, no plus.
absl::StatusOr<int> ParseInteger(const std::string& text);
absl::StatusOr<int64_t> ParseInt64(const std::string& text);
absl::StatusOr<uint64_t> ParseUint64(const std::string& text);
// Finite.
absl::StatusOr<double> ParseNumber(const std::string& text);
// Any text.
absl::StatusOr<std::string> ParseText(const std::string& text);
// Any text but the empty one.
absl::StatusOr<std::string> ParseName(const std::string& text);
// 0 1 true false yes no on off, in any case.
absl::StatusOr<bool> ParseBool(const std::string& text);
// --auth: "secret" (true) or "none".
absl::StatusOr<bool> ParseAuthentication(const std::string& text);
// Seconds ("30", "0.5"), or with a unit: "500ms", "30s", "10m", "1h". To the microsecond.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);

// One of `choices` by its name; an error lists them.
template <typename Value>
absl::StatusOr<Value> ParseChoice(const std::string& text,
                                  const std::vector<std::pair<std::string, Value>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names.push_back(name);
  }
  const std::string last = names.back();
  names.pop_back();
  std::string expected =
      names.empty() ? last : absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
  names.push_back(last);
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, DidYouMean(text, names)));
}

// A function for Option::read, which reads a text with `parse` and keeps the value in `out`; that
// must live as long as the table.
template <typename Value, typename Out>
std::function<absl::Status(const std::string&)> Into(
    absl::StatusOr<Value> (*parse)(const std::string&), Out& out) {
  return [parse, &out](const std::string& text) {
    absl::StatusOr<Value> value = parse(text);
    if (value.ok()) out = *std::move(value);
    return value.status();
  };
}

// Takes lists: each value is added to `out`.
template <typename Value>
std::function<absl::Status(const std::string&)> AddTo(
    absl::StatusOr<Value> (*parse)(const std::string&), std::vector<Value>& out) {
  return [parse, &out](const std::string& text) {
    absl::StatusOr<Value> value = parse(text);
    if (value.ok()) out.push_back(*std::move(value));
    return value.status();
  };
}

// Takes whole numbers from `low` to `high`.
std::function<absl::Status(const std::string&)> IntoBetween(int64_t low, int64_t high,
                                                            int64_t& out);

}  // namespace muster::command_line
