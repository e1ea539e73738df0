#include "proto/io/store_wire.h"

#include <string>

#include "proto/base/stop_state.h"
#include "proto/io/wire_fields.h"
#include "proto/store.pb.h"

namespace muster {
namespace {

constexpr TextBounds kKey{kMaxStoreKeyBytes};
constexpr TextBounds kValue{kMaxStoreValueBytes};
constexpr TextBounds kUniqueId{4096};  // NCCL's is 128 bytes; others may be longer
constexpr TextBounds kMessage{size_t{64} << 10, size_t{64} << 10};
constexpr ListBounds kValues{kMaxStoreWaitKeys};

void SetFields(Wire<proto::StoreRequest::Set> wire, StoreSet& op) {
  using P = proto::StoreRequest::Set;
  wire.Text("key", kKey, &P::key, &P::mutable_key, op.key);
  wire.Text("value", kValue, &P::value, &P::mutable_value, op.value);
}

void GetFields(Wire<proto::StoreRequest::Get> wire, StoreGet& op) {
  using P = proto::StoreRequest::Get;
  wire.Text("key", kKey, &P::key, &P::mutable_key, op.key);
}

void WaitFields(Wire<proto::StoreRequest::Wait> wire, StoreWait& op) {
  using P = proto::StoreRequest::Wait;
  wire.Texts("wait.keys", {kMaxStoreWaitKeys}, kKey, &P::keys, &P::mutable_keys, op.keys);
  wire.Duration("wait.timeout", &P::timeout_us, &P::set_timeout_us, op.timeout);
}

void AddFields(Wire<proto::StoreRequest::Add> wire, StoreAdd& op) {
  using P = proto::StoreRequest::Add;
  wire.Text("key", kKey, &P::key, &P::mutable_key, op.key);
  wire.Plain(&P::amount, &P::set_amount, op.amount);
}

void CompareAndSetFields(Wire<proto::StoreRequest::CompareAndSet> wire, StoreCompareAndSet& op) {
  using P = proto::StoreRequest::CompareAndSet;
  wire.Text("key", kKey, &P::key, &P::mutable_key, op.key);
  wire.Text("value", kValue, &P::expected, &P::mutable_expected, op.expected);
  wire.Text("value", kValue, &P::desired, &P::mutable_desired, op.desired);
}

void DeleteFields(Wire<proto::StoreRequest::Delete> wire, StoreDelete& op) {
  using P = proto::StoreRequest::Delete;
  wire.Text("key", kKey, &P::key, &P::mutable_key, op.key);
}

void ExchangeFields(Wire<proto::StoreRequest::ExchangeUniqueId> wire, UniqueIdExchange& op) {
  using P = proto::StoreRequest::ExchangeUniqueId;
  wire.Text("exchange.group", kKey, &P::group, &P::mutable_group, op.group);
  wire.Plain(&P::nonce, &P::set_nonce, op.nonce);
  wire.Number("exchange.group_size", {1, 1 << 24}, &P::group_size, &P::set_group_size,
              op.group_size);
  wire.Number("exchange.group_rank", {0, op.group_size - 1}, &P::group_rank, &P::set_group_rank,
              op.group_rank);
  wire.Text("exchange.unique_id", kUniqueId, &P::unique_id, &P::mutable_unique_id, op.unique_id);
  wire.Duration("exchange.timeout", &P::timeout_us, &P::set_timeout_us, op.timeout);
}

void CommitFields(Wire<proto::StoreRequest::CommitCheckpoint> wire, CommitCheckpoint& op) {
  using P = proto::StoreRequest::CommitCheckpoint;
  wire.Number("commit.term", kCount, &P::term, &P::set_term, op.term);
  wire.Number("commit.step", {0, kMaxStep}, &P::step, &P::set_step, op.step);
}

void RequestFields(Wire<proto::StoreRequest> wire, StoreRequest& request) {
  using P = proto::StoreRequest;
  StoreOperation& op = request.operation;
  wire.Plain(&P::request_id, &P::set_request_id, request.request_id);
  wire.Number("round", kCountOrNone, &P::round, &P::set_round, request.round);
  wire.Plain(&P::instance, &P::set_instance, request.instance);
  wire.NeedsCase(&P::operation_case, "operation");
  wire.Case(&P::has_set, &P::set, &P::mutable_set, op, SetFields);
  wire.Case(&P::has_get, &P::get, &P::mutable_get, op, GetFields);
  wire.Case(&P::has_wait, &P::wait, &P::mutable_wait, op, WaitFields);
  wire.Case(&P::has_add, &P::add, &P::mutable_add, op, AddFields);
  wire.Case(&P::has_compare_and_set, &P::compare_and_set, &P::mutable_compare_and_set, op,
            CompareAndSetFields);
  wire.Case(&P::has_delete_, &P::delete_, &P::mutable_delete_, op, DeleteFields);
  wire.Case(&P::has_exchange_unique_id, &P::exchange_unique_id, &P::mutable_exchange_unique_id, op,
            ExchangeFields);
  wire.Case(&P::has_commit_checkpoint, &P::commit_checkpoint, &P::mutable_commit_checkpoint, op,
            CommitFields);
}

void ReplyFields(Wire<proto::StoreReply> wire, StoreReply& reply) {
  using P = proto::StoreReply;
  absl::StatusCode code = reply.status.code();
  std::string message(reply.status.message());
  wire.Plain(&P::request_id, &P::set_request_id, reply.request_id);
  wire.Text("message", kMessage, &P::message, &P::mutable_message, message);
  wire.Number("code", kStatusCodes, &P::code, &P::set_code, code);
  if (wire.decodes()) reply.status = absl::Status(code, message);
  wire.Texts("values", kValues, kValue, &P::values, &P::mutable_values, reply.values);
  size_t bytes = 0;
  for (const std::string& value : reply.values) bytes += value.size();
  wire.Require(bytes <= kMaxStoreReplyBytes, "values", "are too large together");
}

}  // namespace

void Encode(const StoreRequest& request, proto::StoreRequest* out) {
  EncodeFields(request, out, RequestFields);
}
void Encode(const StoreReply& reply, proto::StoreReply* out) {
  EncodeFields(reply, out, ReplyFields);
}

absl::StatusOr<StoreRequest> Decode(const proto::StoreRequest& in) {
  return DecodeFields<StoreRequest>(in, RequestFields);
}
absl::StatusOr<StoreReply> Decode(const proto::StoreReply& in) {
  return DecodeFields<StoreReply>(in, ReplyFields);
}

}  // namespace muster
