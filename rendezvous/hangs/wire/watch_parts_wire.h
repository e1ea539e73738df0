// What messages of the hang watch have in common: bounds, lists of ranks, operations. For
// watch_wire.cc and abort_wire.cc alone.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/io/wire_fields.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/wire/watch_wire.h"

namespace muster::proto {
class WatchedOperation;
}  // namespace muster::proto

namespace muster::rendezvous {

inline constexpr NumberBounds kRanks{0, kWatchedRanksMax};
inline constexpr NumberBounds kOneRankOrMore{1, kWatchedRanksMax};
inline constexpr TextBounds kWatchedText{kWatchedTextBytesMax, kWatchedTextBytesMax};
inline constexpr ListBounds kTexts{64, 64};
inline constexpr absl::Duration kMillis = absl::Milliseconds(1);
inline constexpr absl::Duration kMicros = absl::Microseconds(1);

using WireRuns = google::protobuf::RepeatedField<int32_t>;
void EncodeRuns(const std::vector<int>& ranks, WireRuns& out);
std::vector<int> TakeRuns(const WireRuns& in, absl::string_view name, WireCheck& check);

// Ranks as pairs: the first of a run, and how many follow it.
template <typename P>
void Runs(Wire<P> wire, absl::string_view name, const WireRuns& (P::*get)() const,
          WireRuns* (P::*mut)(), std::vector<int>& ranks) {
  if (!wire.decodes()) return EncodeRuns(ranks, *(wire.out().*mut)());
  ranks = TakeRuns((wire.in().*get)(), name, wire.check());
}

void OperationFields(Wire<proto::WatchedOperation> wire, hangs::Operation& operation);

// What a message has no room for, each as a whole: only such parts, or all behind the first too.
enum class LeftOut { kEach, kAllBehind };

// Leaves out of an encoded message the parts with which it has more than `bytes_max`, and those
// that have more than `part_bytes_max`.
template <typename P, typename Part>
void KeepWithin(size_t bytes_max, size_t part_bytes_max, LeftOut left_out, P& message,
                google::protobuf::RepeatedPtrField<Part>* (P::*mut)()) {
  google::protobuf::RepeatedPtrField<Part>& parts = *(message.*mut)();
  google::protobuf::RepeatedPtrField<Part> apart;
  apart.UnsafeArenaSwap(&parts);
  size_t bytes = message.ByteSizeLong();
  apart.UnsafeArenaSwap(&parts);
  int num_kept = 0;
  for (int i = 0; i < parts.size(); ++i) {
    const size_t more = parts.Get(i).ByteSizeLong() + 8;
    if (more <= part_bytes_max && bytes + more <= bytes_max) {
      bytes += more;
      parts.SwapElements(num_kept++, i);
    } else if (left_out == LeftOut::kAllBehind) {
      break;
    }
  }
  parts.DeleteSubrange(num_kept, parts.size() - num_kept);
}

}  // namespace muster::rendezvous
