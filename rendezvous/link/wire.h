// The only translation between the plain values of proto/base/membership.h and
// proto/rendezvous.proto, both ways; for store requests see proto/io/store_wire.h.
//
// An encoder cuts what is for people only (texts of failures) so that each message fits
// kMaxMessageBytes. A decoder refuses what it does not know and what is out of bounds; what a peer
// sends never trips a check.
//
// Threads: pure.
#pragma once

#include "absl/status/statusor.h"
#include "proto/base/membership.h"
#include "proto/base/stop_request.h"
#include "proto/io/store_wire.h"

namespace muster::proto {
class Answer;
class Ask;
class Directive;
class Report;
}  // namespace muster::proto

namespace muster::rendezvous {

class EncodedParts;  // rendezvous/link/parts_wire.h

inline constexpr int kProtocolVersion = 7;
// The most bytes of a message: to the server, of one report or one request to the store; to an
// agent, of one directive or one reply of the store with its values.
inline constexpr int kMaxMessageBytes = 4 << 20;
inline constexpr int kMaxReplyMessageBytes =
    static_cast<int>(kMaxStoreReplyBytes) + kMaxMessageBytes;
inline constexpr int kMaxPortsPerNode = 4096;
inline constexpr int kMaxFailures = 4096;
inline constexpr size_t kMaxTextBytes = size_t{64} << 10;
inline constexpr size_t kMaxRunIdBytes = 1024;

// The most bytes of why a node does not pass its check.
inline constexpr size_t kMaxCheckBytes = 1024;

// What an encoder keeps of failures: the first ones, the head of the message and the tail of the
// output.
inline constexpr int kFailuresSent = 128;
inline constexpr size_t kFailureMessageBytesSent = size_t{16} << 10;
inline constexpr size_t kFailureOutputBytesSent = size_t{8} << 10;

// A report with its fence: whom it is from, and the newest term that agent has heard (0: none yet).
struct FencedReport {
  Incarnation from;
  ServerTerm term;
  AgentReport report;
  friend bool operator==(const FencedReport&, const FencedReport&) = default;
};

// Those of store_wire.h too, so that a message of either kind is said the same way.
using muster::Decode;
using muster::Encode;

void Encode(const FencedReport& report, proto::Report* out);
void Encode(const Directive& directive, proto::Directive* out);
// Encodes for one of many that are told the same round, or end: `parts` remembers what it has
// encoded.
void Encode(const Directive& directive, EncodedParts& parts, proto::Directive* out);
void Encode(const StopRequest& request, proto::Ask* out);
void Encode(const StopAnswer& answer, proto::Answer* out);

// Errors: kInvalidArgument: an unknown enumerator, a negative size, a list or text over its bound,
// a missing part.
absl::StatusOr<FencedReport> Decode(const proto::Report& in);
absl::StatusOr<Directive> Decode(const proto::Directive& in);
absl::StatusOr<StopRequest> Decode(const proto::Ask& in);
absl::StatusOr<StopAnswer> Decode(const proto::Answer& in);

}  // namespace muster::rendezvous
