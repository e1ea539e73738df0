// The wire form of store requests and replies, both ways. Used by the rendezvous stream
// (rendezvous/link/wire.cc) and by the agent's Unix socket (agent/worker_service.cc); without
// gRPC, so that workers can link it.
//
// Threads: pure.
#pragma once

#include "absl/status/statusor.h"
#include "proto/base/store_messages.h"

namespace muster::proto {
class StoreReply;
class StoreRequest;
}  // namespace muster::proto

namespace muster {

inline constexpr int kMaxStoreWaitKeys = 4096;

void Encode(const StoreRequest& request, proto::StoreRequest* out);
void Encode(const StoreReply& reply, proto::StoreReply* out);

// Errors: kInvalidArgument: no operation, a key, value or list over its bound, a negative size or
//         time. The request id is the message's own: answer to it.
absl::StatusOr<StoreRequest> Decode(const proto::StoreRequest& in);
absl::StatusOr<StoreReply> Decode(const proto::StoreReply& in);

}  // namespace muster
