// What ranks called last where one has aborted, on the wire: a part of watch_wire.h, which has the
// rules.
//
// Threads: pure.
#pragma once

#include "proto/io/wire_fields.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::proto {
class WatchAborts;
class WatchLastCalls;
}  // namespace muster::proto

namespace muster::rendezvous {

// A rank that does not fit is left out as a whole, and counts as not known.
void LastCallsFields(Wire<proto::WatchLastCalls> wire, hangs::NodeLastCalls& word);
void AbortsFields(Wire<proto::WatchAborts> wire, hangs::SayAborts& order);

}  // namespace muster::rendezvous
