// The only translation between rendezvous/hangs/wire/watch_messages.h and proto/watch.proto.
//
// An encoder keeps each message within its bound: a rank whose details or stack do not fit is left
// out as a whole, so that it counts as not known, and is never judged by half of what it did.
// A decoder refuses what it does not know and what is out of bounds.
//
// Threads: pure.
#pragma once

#include "absl/status/statusor.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::proto {
class WatchOrder;
class WatchWord;
}  // namespace muster::proto

namespace muster::rendezvous {

// Bytes of one message. A summary has a bound by its lists.
inline constexpr size_t kWatchSummaryBytesMax = size_t{8} << 10;
inline constexpr size_t kWatchWordBytesMax = size_t{1} << 20;
inline constexpr size_t kWatchOrderBytesMax = size_t{512} << 10;
inline constexpr size_t kWatchedRankBytesMax = size_t{32} << 10;
inline constexpr size_t kWatchedTextBytesMax = 4096;
inline constexpr int kWatchedRanksMax = 1 << 17;
// Lists of ranks in a verdict, each a run; more are left out.
inline constexpr int kRunsMax = 1024;

void Encode(const hangs::NodeWord& word, proto::WatchWord* out);
void Encode(const hangs::WatchOrder& order, proto::WatchOrder* out);

// Errors: kInvalidArgument: an unknown enumerator, a negative size, a list or text over its bound,
//         an empty message.
absl::StatusOr<hangs::NodeWord> Decode(const proto::WatchWord& in);
absl::StatusOr<hangs::WatchOrder> Decode(const proto::WatchOrder& in);

}  // namespace muster::rendezvous
