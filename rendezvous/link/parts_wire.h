// The parts of messages (wire.h) and of records on disk (rendezvous/server/record_wire.h), each
// described for both ways over the wire.
//
// Threads: pure.
#pragma once

#include <string>

#include "proto/base/membership.h"
#include "proto/io/wire_fields.h"
#include "rendezvous/link/wire.h"

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

inline constexpr NumberBounds kSignals{0, 128};
inline constexpr TextBounds kText{kMaxTextBytes};
inline constexpr TextBounds kPrintable{.taken = kMaxTextBytes, .is_printable = true};

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

void SettingsFields(Wire<proto::Settings> wire, RendezvousSettings& settings);
void NodeFields(Wire<proto::Node> wire, NodeDescription& node);
void FailureFields(Wire<proto::Failure> wire, WorkerFailure& failure);
void PeerFields(Wire<proto::Peer> wire, Peer& peer);
// An encoder leaves out the peers, which EncodedPeers has.
void AssignmentFields(Wire<proto::Assignment> wire, Assignment& assignment);
void StopRoundFields(Wire<proto::Directive_StopRound> wire, StopRound& stop);
void OutcomeFields(Wire<proto::Directive_EndJob> wire, JobOutcome& outcome);

}  // namespace muster::rendezvous
