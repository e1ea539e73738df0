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
// What is counted on from, or looked through one by one.
inline constexpr NumberBounds kRounds{-1, int64_t{1} << 50};  // -1: none
inline constexpr NumberBounds kAttempts{0, 10'000'000};
inline constexpr TextBounds kText{kMaxTextBytes};
inline constexpr TextBounds kPrintable{.taken = kMaxTextBytes, .is_printable = true};

// The large parts of directives in their wire form, made once for all who are told the same in
// turn: the members of a round, and how a job ended.
//
// Threads: compatible.
class EncodedParts {
 public:
  const std::string& Of(const Peers& peers);
  const std::string& Of(const JobOutcome& outcome);

 private:
  // The last of each, and its bytes.
  Peers peers_;
  std::string peers_bytes_;
  JobOutcome outcome_;
  std::string outcome_bytes_;
};

void SettingsFields(Wire<proto::Settings> wire, RendezvousSettings& settings);
void NodeFields(Wire<proto::Node> wire, NodeDescription& node);
void FailureFields(Wire<proto::Failure> wire, WorkerFailure& failure);
void PeerFields(Wire<proto::Peer> wire, Peer& peer);
// An encoder leaves out the peers, which EncodedParts has.
void AssignmentFields(Wire<proto::Assignment> wire, Assignment& assignment);
void StopRoundFields(Wire<proto::Directive_StopRound> wire, StopRound& stop);
void OutcomeFields(Wire<proto::Directive_EndJob> wire, JobOutcome& outcome);

}  // namespace muster::rendezvous
