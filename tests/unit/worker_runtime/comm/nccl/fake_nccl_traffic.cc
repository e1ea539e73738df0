#include "tests/unit/worker_runtime/comm/nccl/fake_nccl_traffic.h"

#include <algorithm>
#include <cstring>

#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

using Kind = FakeCall::Kind;

DType TypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return DType::kF64;
    case ncclFloat32:
      return DType::kF32;
    case ncclBfloat16:
      return DType::kBf16;
    case ncclFloat16:
      return DType::kF16;
    case ncclInt64:
      return DType::kI64;
    case ncclInt32:
      return DType::kI32;
    default:
      return DType::kU8;
  }
}

ReduceOp OpOf(ncclRedOp_t op) {
  return op == ncclMax ? ReduceOp::kMax : op == ncclMin ? ReduceOp::kMin : ReduceOp::kSum;
}

bool GoTogether(const FakeCall& a, const FakeCall& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.peer == b.peer;
}

// What all ranks' inputs make, `count` elements each.
std::vector<uint8_t> Reduced(const std::map<int, FakeCall>& calls, size_t count) {
  const DType type = TypeOf(calls.begin()->second.type), wide = AccumulationType(type);
  const auto elements = static_cast<int64_t>(count);
  std::vector<uint8_t> sum(count * SizeOf(wide)), next(count * SizeOf(wide));
  for (const auto& [rank, call] : calls) {
    Widen(type, rank == 0 ? sum.data() : next.data(), call.input, elements);
    if (rank > 0) Accumulate(wide, OpOf(call.op), sum.data(), next.data(), elements);
  }
  std::vector<uint8_t> out(count * SizeOf(type));
  Narrow(type, out.data(), sum.data(), elements);
  return out;
}

// Inputs may lie in outputs: all are read before anything is written.
void Compute(const std::map<int, FakeCall>& calls) {
  const FakeCall& first = calls.begin()->second;
  const size_t bytes = first.count * SizeOf(TypeOf(first.type));
  std::vector<uint8_t> all;
  if (first.kind == Kind::kAllReduce || first.kind == Kind::kReduceScatter) {
    all = Reduced(calls, first.kind == Kind::kAllReduce ? first.count : first.count * calls.size());
  }
  for (const auto& [rank, call] : calls) {
    const auto* const input = static_cast<const uint8_t*>(call.input);
    const bool gives =
        call.kind == Kind::kAllGather || (call.kind == Kind::kBroadcast && rank == call.peer);
    if (gives) all.insert(all.end(), input, input + bytes);
  }
  for (const auto& [rank, call] : calls) {
    if (call.count == 0) continue;
    const bool takes_block = call.kind == Kind::kReduceScatter;
    std::memcpy(call.output, all.data() + (takes_block ? rank * bytes : 0),
                takes_block ? bytes : all.size());
  }
}

}  // namespace

void FakeNcclTraffic::Run(const FakeRank& at, int64_t number, const std::vector<FakeCall>& calls) {
  base::MutexLock lock(mu_);
  if (calls.front().is_transfer()) return RunTransfers(at, calls);
  RunCollective(at, number, calls.front());
}

void FakeNcclTraffic::Kill(const FakeRank& at) {
  base::MutexLock lock(mu_);
  killed_.insert({at.group, at.rank});
  changed_.NotifyAll();
}

bool FakeNcclTraffic::IsKilled(const FakeRank& at) const {
  return killed_.count({at.group, at.rank}) > 0;
}

void FakeNcclTraffic::AwaitChange() { changed_.WaitUntil(mu_, MonoTime::InfiniteFuture()); }

void FakeNcclTraffic::RunCollective(const FakeRank& at, int64_t number, const FakeCall& call) {
  if (IsKilled(at)) return;
  Meeting& meeting = meetings_[{at.group, number}];
  meeting.calls[at.rank] = call;
  const auto goes_together = [&](const auto& other) { return GoTogether(call, other.second); };
  if (static_cast<int>(meeting.calls.size()) == at.size &&
      std::all_of(meeting.calls.begin(), meeting.calls.end(), goes_together)) {
    Compute(meeting.calls);
    meeting.is_done = true;
    changed_.NotifyAll();
  }
  while (!meeting.is_done && !IsKilled(at)) AwaitChange();
  if (!meeting.is_done) meeting.calls.erase(at.rank);
}

FakeNcclTraffic::Mailbox& FakeNcclTraffic::MailboxOf(const FakeRank& at, int from, int to) {
  return mailboxes_[{at.group, from, to}];
}

bool FakeNcclTraffic::Receive(const FakeRank& at, const FakeCall& call) {
  Mailbox& from = MailboxOf(at, call.peer, at.rank);
  const auto fits = [&] {
    return !from.empty() && from.front()->call.count == call.count &&
           from.front()->call.type == call.type;
  };
  while (!fits() && !IsKilled(at)) AwaitChange();
  if (IsKilled(at)) return false;
  if (call.count > 0) {
    std::memcpy(call.output, from.front()->call.input, call.count * SizeOf(TypeOf(call.type)));
  }
  from.front()->is_taken = true;
  from.pop_front();
  changed_.NotifyAll();
  return true;
}

void FakeNcclTraffic::RunTransfers(const FakeRank& at, const std::vector<FakeCall>& calls) {
  std::vector<std::shared_ptr<Message>> sent;
  for (const FakeCall& call : calls) {
    if (call.kind != Kind::kSend || IsKilled(at)) continue;
    sent.push_back(std::make_shared<Message>(Message{.call = call}));
    MailboxOf(at, at.rank, call.peer).push_back(sent.back());
  }
  changed_.NotifyAll();
  for (const FakeCall& call : calls) {
    if (call.kind == Kind::kRecv && !Receive(at, call)) break;
  }
  for (const std::shared_ptr<Message>& message : sent) {
    while (!message->is_taken && !IsKilled(at)) AwaitChange();
    if (!message->is_taken) std::erase(MailboxOf(at, at.rank, message->call.peer), message);
  }
}

}  // namespace muster::comm
