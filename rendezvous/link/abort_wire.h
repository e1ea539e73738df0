// What ranks called last where one has aborted, on the wire: a part of watch_wire.h, which has the
// rules.
//
// Threads: pure.
#pragma once

#include "proto/io/wire_check.h"
#include "rendezvous/verdict/watch_messages.h"

namespace muster::proto {
class WatchAborts;
class WatchLastCalls;
}  // namespace muster::proto

namespace muster::rendezvous {

// A rank that does not fit is left out as a whole, and counts as not known.
void EncodeLastCalls(const verdict::NodeLastCalls& in, proto::WatchLastCalls* out);
verdict::NodeLastCalls TakeLastCalls(const proto::WatchLastCalls& in, WireCheck& check);

void EncodeAborts(const verdict::SayAborts& in, proto::WatchAborts* out);
verdict::SayAborts TakeAborts(const proto::WatchAborts& in, WireCheck& check);

}  // namespace muster::rendezvous
