#include "proto/io/store_wire.h"

#include <limits>

#include "proto/io/wire_check.h"
#include "proto/store.pb.h"

namespace muster {
namespace {

// NCCL's is 128 bytes; others may be longer.
constexpr size_t kMaxUniqueIdBytes = 4096;
constexpr size_t kMaxMessageBytes = size_t{64} << 10;

struct OperationEncoder {
  proto::StoreRequest* out;

  void operator()(const StoreSet& op) const {
    out->mutable_set()->set_key(op.key);
    out->mutable_set()->set_value(op.value);
  }
  void operator()(const StoreGet& op) const { out->mutable_get()->set_key(op.key); }
  void operator()(const StoreWait& op) const {
    for (const std::string& key : op.keys) out->mutable_wait()->add_keys(key);
    out->mutable_wait()->set_timeout_us(EncodeDuration(op.timeout));
  }
  void operator()(const StoreAdd& op) const {
    out->mutable_add()->set_key(op.key);
    out->mutable_add()->set_amount(op.amount);
  }
  void operator()(const StoreCompareAndSet& op) const {
    proto::StoreRequest::CompareAndSet* to = out->mutable_compare_and_set();
    to->set_key(op.key);
    to->set_expected(op.expected);
    to->set_desired(op.desired);
  }
  void operator()(const StoreDelete& op) const { out->mutable_delete_()->set_key(op.key); }
  void operator()(const UniqueIdExchange& op) const {
    proto::StoreRequest::ExchangeUniqueId* to = out->mutable_exchange_unique_id();
    to->set_group(op.group);
    to->set_nonce(op.nonce);
    to->set_group_rank(op.group_rank);
    to->set_group_size(op.group_size);
    to->set_unique_id(op.unique_id);
    to->set_timeout_us(EncodeDuration(op.timeout));
  }
  void operator()(const CommitCheckpoint& op) const {
    proto::StoreRequest::CommitCheckpoint* to = out->mutable_commit_checkpoint();
    to->set_term(op.term.value());
    to->set_step(op.step);
  }
};

StoreWait DecodeWait(const proto::StoreRequest::Wait& in, WireCheck& check) {
  StoreWait out;
  if (check.List("wait.keys", in.keys_size(), kMaxStoreWaitKeys)) {
    for (const std::string& key : in.keys()) {
      out.keys.push_back(check.Text("wait.keys", key, kMaxStoreKeyBytes));
    }
  }
  out.timeout = check.Duration("wait.timeout", in.timeout_us());
  return out;
}

UniqueIdExchange DecodeExchange(const proto::StoreRequest::ExchangeUniqueId& in, WireCheck& check) {
  UniqueIdExchange out;
  out.group = check.Text("exchange.group", in.group(), kMaxStoreKeyBytes);
  out.nonce = in.nonce();
  out.group_size = check.Range("exchange.group_size", in.group_size(), 1, 1 << 24);
  out.group_rank = check.Range("exchange.group_rank", in.group_rank(), 0, out.group_size - 1);
  out.unique_id = check.Text("exchange.unique_id", in.unique_id(), kMaxUniqueIdBytes);
  out.timeout = check.Duration("exchange.timeout", in.timeout_us());
  return out;
}

CommitCheckpoint DecodeCommit(const proto::StoreRequest::CommitCheckpoint& in, WireCheck& check) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return {.term = ServerTerm(check.Range<int64_t>("commit.term", in.term(), 0, kMost)),
          .step = check.Range<int64_t>("commit.step", in.step(), 0, kMost)};
}

StoreOperation DecodeOperation(const proto::StoreRequest& in, WireCheck& check) {
  const auto key = [&check](const std::string& k) {
    return check.Text("key", k, kMaxStoreKeyBytes);
  };
  const auto value = [&check](const std::string& v) {
    return check.Text("value", v, kMaxStoreValueBytes);
  };
  switch (in.operation_case()) {
    case proto::StoreRequest::kSet:
      return StoreSet{key(in.set().key()), value(in.set().value())};
    case proto::StoreRequest::kGet:
      return StoreGet{key(in.get().key())};
    case proto::StoreRequest::kWait:
      return DecodeWait(in.wait(), check);
    case proto::StoreRequest::kAdd:
      return StoreAdd{key(in.add().key()), in.add().amount()};
    case proto::StoreRequest::kCompareAndSet:
      return StoreCompareAndSet{key(in.compare_and_set().key()),
                                value(in.compare_and_set().expected()),
                                value(in.compare_and_set().desired())};
    case proto::StoreRequest::kDelete:
      return StoreDelete{key(in.delete_().key())};
    case proto::StoreRequest::kExchangeUniqueId:
      return DecodeExchange(in.exchange_unique_id(), check);
    case proto::StoreRequest::kCommitCheckpoint:
      return DecodeCommit(in.commit_checkpoint(), check);
    case proto::StoreRequest::OPERATION_NOT_SET:
      break;
  }
  check.Require(false, "operation", "is not known to this version of muster");
  return StoreGet{};
}

}  // namespace

void Encode(const StoreRequest& request, proto::StoreRequest* out) {
  out->set_request_id(request.request_id);
  out->set_round(request.round.value());
  out->set_instance(request.instance.value());
  std::visit(OperationEncoder{out}, request.operation);
}

void Encode(const StoreReply& reply, proto::StoreReply* out) {
  out->set_request_id(reply.request_id);
  out->set_code(static_cast<int>(reply.status.code()));
  out->set_message(std::string(reply.status.message().substr(0, kMaxMessageBytes)));
  for (const std::string& value : reply.values) out->add_values(value);
}

absl::StatusOr<StoreRequest> Decode(const proto::StoreRequest& in) {
  WireCheck check;
  StoreRequest out;
  out.request_id = in.request_id();
  out.round = Round(check.Range<int64_t>("round", in.round(), kNoRound.value(),
                                         std::numeric_limits<int64_t>::max()));
  out.instance = Instance(in.instance());
  out.operation = DecodeOperation(in, check);
  if (!check.status().ok()) return check.status();
  return out;
}

absl::StatusOr<StoreReply> Decode(const proto::StoreReply& in) {
  WireCheck check;
  StoreReply out;
  out.request_id = in.request_id();
  out.status = absl::Status(check.Code("code", in.code()),
                            check.Text("message", in.message(), kMaxMessageBytes));
  if (check.List("values", in.values_size(), kMaxStoreWaitKeys)) {
    size_t bytes = 0;
    for (const std::string& value : in.values()) {
      out.values.push_back(check.Text("values", value, kMaxStoreValueBytes));
      bytes += value.size();
    }
    check.Require(bytes <= kMaxStoreReplyBytes, "values", "are too large together");
  }
  if (!check.status().ok()) return check.status();
  return out;
}

}  // namespace muster
