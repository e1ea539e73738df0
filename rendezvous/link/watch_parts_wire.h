// What messages of the hang watch have in common: durations, texts, lists of ranks, operations. For
// watch_wire.cc and abort_wire.cc alone.
//
// Threads: pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/io/wire_check.h"
#include "rendezvous/link/watch_wire.h"
#include "rendezvous/verdict/evidence.h"

namespace muster::proto {
class WatchedOperation;
}  // namespace muster::proto

namespace muster::rendezvous {

inline constexpr int kTextsMax = 64;

inline int64_t Millis(absl::Duration duration) {
  return absl::ToInt64Milliseconds(std::max(duration, absl::ZeroDuration()));
}
inline absl::Duration FromMillis(WireCheck& check, absl::string_view field, int64_t millis) {
  return absl::Milliseconds(check.Range<int64_t>(field, millis, 0, int64_t{1} << 50));
}

template <typename Enum>
Enum FromNumber(WireCheck& check, absl::string_view field, int number, Enum last) {
  return static_cast<Enum>(check.Range(field, number, 0, static_cast<int>(last)));
}

inline std::string Cut(const std::string& text) { return text.substr(0, kWatchedTextBytesMax); }
inline std::string TakeText(WireCheck& check, absl::string_view field, const std::string& text) {
  return check.Text(field, text, kWatchedTextBytesMax);
}

template <typename List>
std::vector<std::string> TakeTexts(WireCheck& check, absl::string_view field, const List& in) {
  std::vector<std::string> out;
  if (!check.List(field, in.size(), kTextsMax)) return out;
  for (const std::string& text : in) out.push_back(TakeText(check, field, text));
  return out;
}

template <typename List>
void EncodeRuns(const std::vector<int>& ranks, List* out) {
  for (size_t begin = 0; begin < ranks.size() && out->size() < 2 * kRunsMax;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out->Add(ranks[begin]);
    out->Add(static_cast<int>(end - begin) - 1);
    begin = end;
  }
}

template <typename List>
std::vector<int> TakeRuns(const List& in, absl::string_view field, WireCheck& check) {
  std::vector<int> out;
  check.Require(in.size() % 2 == 0, field, "are not pairs");
  if (!check.List(field, in.size(), 2 * kRunsMax)) return out;
  for (int i = 0; i + 1 < in.size(); i += 2) {
    const int first = check.Range(field, in.Get(i), 0, kWatchedRanksMax);
    const int more = check.Range(field, in.Get(i + 1), 0, kWatchedRanksMax);
    check.Require(out.size() + static_cast<size_t>(more) < size_t{2} * kWatchedRanksMax, field,
                  "are too many");
    if (!check.status().ok()) return out;
    for (int k = 0; k <= more; ++k) out.push_back(first + k);
  }
  return out;
}

// Each once.
template <typename List>
std::vector<int> TakeSortedRuns(const List& in, absl::string_view field, WireCheck& check) {
  std::vector<int> out = TakeRuns(in, field, check);
  check.Require(std::adjacent_find(out.begin(), out.end(), std::greater_equal<int>()) == out.end(),
                field, "are not in order");
  return out;
}

void EncodeOperation(const verdict::Operation& in, proto::WatchedOperation* out);
verdict::Operation TakeOperation(const proto::WatchedOperation& in, WireCheck& check);

}  // namespace muster::rendezvous
