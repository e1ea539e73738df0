// The parts of messages (wire.h) and of records on disk (rendezvous/server/record_wire.h): values
// and their wire form, both ways. A decoder notes in `check` what it refuses.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/membership.h"
#include "proto/io/wire_check.h"

namespace muster::proto {
class Assignment;
class Directive_EndJob;  // Directive::EndJob, as the compiler of messages names it
class Directive_StopRound;
class Failure;
class Node;
class Peer;
class Settings;
}  // namespace muster::proto

namespace muster::rendezvous {

inline constexpr int kMaxSignal = 128;

// The members of a round in their wire form, made once for all who are told the same list in turn.
//
// Threads: compatible.
class EncodedPeers {
 public:
  const std::string& Of(const Peers& peers);

 private:
  Peers peers_;        // the last ones
  std::string bytes_;  // they
};

// -1 or more.
int64_t Signed(WireCheck& check, absl::string_view field, int64_t value);
// At most kMaxTextBytes.
std::string Text(WireCheck& check, absl::string_view field, const std::string& value);
// Names and reasons of other nodes stand in lines of our log and on consoles: what could end a line
// or move a cursor there is shown as `?`.
std::string Printable(WireCheck& check, absl::string_view field, const std::string& value);

void Encode(const RendezvousSettings& in, proto::Settings* out);
void Encode(const NodeDescription& in, proto::Node* out);
void Encode(const WorkerFailure& in, proto::Failure* out);
void Encode(const Peer& in, proto::Peer* out);
void Encode(const Assignment& in, EncodedPeers& peers, proto::Assignment* out);
void Encode(const StopRound& in, proto::Directive_StopRound* out);
void Encode(const JobOutcome& in, proto::Directive_EndJob* out);

RendezvousSettings Decode(const proto::Settings& in, WireCheck& check);
NodeDescription Decode(const proto::Node& in, WireCheck& check);
WorkerFailure Decode(const proto::Failure& in, WireCheck& check);
Peer Decode(const proto::Peer& in, WireCheck& check);
Assignment Decode(const proto::Assignment& in, WireCheck& check);
StopRound Decode(const proto::Directive_StopRound& in, WireCheck& check);
JobOutcome Decode(const proto::Directive_EndJob& in, WireCheck& check);

}  // namespace muster::rendezvous
