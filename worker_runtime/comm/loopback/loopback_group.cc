#include "worker_runtime/comm/loopback/loopback_group.h"

#include <cstring>

#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/loopback/reference_collectives.h"

namespace muster::comm {
namespace {

void RunTransfer(const Call& send, const Call& recv) {
  if (send.operation.bytes() > 0) {
    std::memcpy(recv.output, send.inputs[0], send.operation.bytes());
  }
}

}  // namespace

LoopbackGroup::LoopbackGroup(std::string name, int size, std::shared_ptr<DeadlineWatch> watch)
    : name_(std::move(name)), size_(size), watch_(std::move(watch)), left_(size, false) {}

LoopbackGroup::Key LoopbackGroup::KeyOf(int rank, const Operation& op) {
  if (op.is_collective()) return {-1, -1, op.sequence};
  if (op.kind == OperationKind::kSend) return {rank, op.peer, op.sequence};
  return {op.peer, rank, op.sequence};
}

size_t LoopbackGroup::Needed(const Operation& op) const { return op.is_collective() ? size_ : 2; }

std::vector<int> LoopbackGroup::Missing(int rank, const Operation& op,
                                        const Meeting& meeting) const {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    const bool needed = op.is_collective() || r == rank || r == op.peer;
    if (needed && !meeting.arrivals.contains(r)) missing.push_back(r);
  }
  return missing;
}

std::optional<int> LoopbackGroup::Departed(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (left_[rank]) return rank;
  }
  return std::nullopt;
}

absl::Status LoopbackGroup::Check(const Meeting& meeting) const {
  const auto& [first_rank, first] = *meeting.arrivals.begin();
  const auto& [last_rank, last] = *meeting.arrivals.rbegin();
  if (!first.call.operation.is_collective()) {
    const bool first_sends = first.call.operation.kind == OperationKind::kSend;
    const Operation& send = (first_sends ? first : last).call.operation;
    const Operation& recv = (first_sends ? last : first).call.operation;
    if (send.count == recv.count && send.dtype == recv.dtype) return absl::OkStatus();
    return TransferMismatchError(name_, send, first_sends ? first_rank : last_rank, recv);
  }
  std::map<int, Operation> calls;
  bool alike = true;
  for (const auto& [rank, arrival] : meeting.arrivals) {
    calls[rank] = arrival.call.operation;
    alike = alike && arrival.call.operation == first.call.operation;
  }
  return alike ? absl::OkStatus() : MismatchError(name_, calls);
}

void LoopbackGroup::Arrive(int rank, Call call) {
  Ended ended;
  const Operation op = call.operation;
  const Key key = KeyOf(rank, op);
  bool complete = false;
  {
    base::MutexLock lock(mu_);
    if (!failure_.ok()) return call.Finish(failure_);
    const MonoTime deadline = call.deadline;
    Meeting& meeting = meetings_[key];
    Arrival& arrival = meeting.arrivals[rank];
    arrival.call = std::move(call);
    complete = meeting.arrivals.size() == Needed(op);
    const std::optional<int> departed = Departed(Missing(rank, op, meeting));
    if (const absl::Status status = Check(meeting); !status.ok()) {
      ended = FailLocked(status);
      complete = false;
    } else if (departed.has_value()) {
      ended = FailLocked(GoneError(op, name_, *departed, size_, ""));
    } else if (complete) {
      meeting.running = true;
    } else {
      arrival.expiry = watch_->Add(deadline, [this, key, rank] { Expire(key, rank); });
    }
  }
  if (complete) ended = Run(key);
  Settle(std::move(ended));
}

LoopbackGroup::Ended LoopbackGroup::Run(Key key) {
  Meeting* meeting = nullptr;
  {
    base::MutexLock lock(mu_);
    meeting = &meetings_.at(key);  // stays: nobody else ends a running meeting
  }
  std::vector<const Call*> calls;
  for (const auto& [rank, arrival] : meeting->arrivals) {
    arrival.call.MarkStarted();
    calls.push_back(&arrival.call);
  }
  if (calls[0]->operation.is_collective()) {
    RunReference(calls);
  } else if (calls[0]->operation.kind == OperationKind::kSend) {
    RunTransfer(*calls[0], *calls[1]);
  } else {
    RunTransfer(*calls[1], *calls[0]);
  }
  Ended ended;
  base::MutexLock lock(mu_);
  for (auto& [rank, arrival] : meeting->arrivals) ended.arrivals.push_back(std::move(arrival));
  meetings_.erase(key);
  return ended;
}

void LoopbackGroup::Settle(Ended ended) {
  for (const Arrival& arrival : ended.arrivals) {
    if (arrival.expiry != 0) watch_->Remove(arrival.expiry);
  }
  for (const Arrival& arrival : ended.arrivals) arrival.call.Finish(ended.status);
}

LoopbackGroup::Ended LoopbackGroup::FailLocked(absl::Status failure) {
  if (failure_.ok()) failure_ = std::move(failure);
  Ended ended{.status = failure_};
  for (auto it = meetings_.begin(); it != meetings_.end();) {
    if (it->second.running) {
      ++it;
      continue;
    }
    for (auto& [rank, arrival] : it->second.arrivals) ended.arrivals.push_back(std::move(arrival));
    it = meetings_.erase(it);
  }
  return ended;
}

void LoopbackGroup::Fail(absl::Status failure) {
  Ended ended;
  {
    base::MutexLock lock(mu_);
    ended = FailLocked(std::move(failure));
  }
  Settle(std::move(ended));
}

void LoopbackGroup::Expire(Key key, int rank) {
  Ended ended;
  {
    base::MutexLock lock(mu_);
    const auto found = meetings_.find(key);
    if (found == meetings_.end() || found->second.running) return;
    const Call& call = found->second.arrivals.at(rank).call;
    ended =
        FailLocked(AbsentError(call.operation, name_, Missing(rank, call.operation, found->second),
                               size_, call.timeout, ""));
  }
  Settle(std::move(ended));
}

void LoopbackGroup::Leave(int rank) {
  Ended ended;
  {
    base::MutexLock lock(mu_);
    left_[rank] = true;
    for (const auto& [key, meeting] : meetings_) {
      if (meeting.running) continue;
      const auto& [other, arrival] = *meeting.arrivals.begin();
      const Operation& op = arrival.call.operation;
      if (meeting.arrivals.contains(rank) || Departed(Missing(other, op, meeting)).has_value()) {
        ended = FailLocked(GoneError(op, name_, rank, size_, ""));
        break;
      }
    }
  }
  Settle(std::move(ended));
}

std::shared_ptr<LoopbackGroup> LoopbackGroup::Child(const std::string& path, std::string name,
                                                    int size) {
  base::MutexLock lock(mu_);
  std::shared_ptr<LoopbackGroup>& child = children_[path];
  if (child == nullptr) child = std::make_shared<LoopbackGroup>(std::move(name), size, watch_);
  return child;
}

}  // namespace muster::comm
