#include "rendezvous/client/store_outbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

StoreOutbox::StoreOutbox() = default;
StoreOutbox::~StoreOutbox() = default;

absl::Status StoreOutbox::Put(const StoreRequest& request) {
  if (unanswered_.size() >= kMaxStoreRequestsInFlight || unsent_bytes_ >= kMaxUnsentStoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unanswered_.size(), " store requests of this node, ", unsent_bytes_,
                     " bytes of them not sent yet, wait for an answer already"));
  }
  unanswered_.insert(request.request_id);
  auto message = std::make_unique<proto::StoreRequest>();
  Encode(request, message.get());
  unsent_bytes_ += message->ByteSizeLong();
  unsent_.push_back(std::move(message));
  return absl::OkStatus();
}

bool StoreOutbox::Next(proto::FromAgent& out) {
  if (unsent_.empty()) return false;
  unsent_bytes_ -= unsent_.front()->ByteSizeLong();
  out.mutable_store()->Swap(unsent_.front().get());
  unsent_.pop_front();
  return true;
}

absl::btree_set<uint64_t> StoreOutbox::GiveUp() {
  unsent_.clear();
  unsent_bytes_ = 0;
  return std::exchange(unanswered_, {});
}

}  // namespace muster::rendezvous
