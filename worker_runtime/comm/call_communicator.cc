#include "worker_runtime/comm/call_communicator.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/register_memory.h"

namespace muster::comm {
namespace {

// Keeps sizes of buffers and what is computed from them inside 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 48;

std::string SizeMismatch(absl::string_view what, int64_t has, int64_t needs) {
  return absl::StrCat(what, " has ", has, " elements, but ", needs, " are needed");
}

std::string TypeMismatch(DType input, DType output) {
  return absl::StrCat("input is ", muster::ToString(input), " and output ",
                      muster::ToString(output));
}

// FNV-1a, which is the same in every process.
uint32_t HashOfPath(absl::string_view path) {
  uint32_t hash = 0x811c9dc5;
  for (const char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193;
  return hash;
}

Membership WithFamily(Membership membership) {
  if (membership.family == nullptr) membership.family = std::make_shared<CallFamily>();
  return membership;
}

bool IsBad(const void* data, int64_t count) {
  return count < 0 || count > kMaxElements || (data == nullptr && count > 0);
}

// What is wrong with a call that has one block of output for each of `input_blocks` of input or the
// reverse; empty: nothing.
std::string CheckBlocks(ConstBuffer whole, absl::string_view whole_name, ConstBuffer block,
                        absl::string_view block_name, int size) {
  if (IsBad(whole.data, whole.count)) return absl::StrCat(whole_name, " is not a valid buffer");
  if (IsBad(block.data, block.count)) return absl::StrCat(block_name, " is not a valid buffer");
  if (whole.dtype != block.dtype) return TypeMismatch(whole.dtype, block.dtype);
  if (whole.count != block.count * size) {
    return absl::StrCat(SizeMismatch(whole_name, whole.count, block.count * size), ": ", size,
                        " ranks times the ", block.count, " of ", block_name);
  }
  return "";
}

}  // namespace

void Call::MarkStarted() const {
  completion->MarkStarted();
  for (const auto ticket : tickets) ring->SetState(ticket, OperationState::kStarted);
}

void Call::Finish(absl::Status status) const {
  const OperationState state = status.ok() ? OperationState::kDone : OperationState::kFailed;
  for (const auto ticket : tickets) ring->SetState(ticket, state);
  completion->Finish(std::move(status));
}

CallCommunicator::CallCommunicator(Membership membership)
    : membership_(WithFamily(std::move(membership))) {
  if (membership_.ring != nullptr) {
    ring_group_ = membership_.ring->AddGroup({.name = membership_.group,
                                              .id = membership_.group_id,
                                              .rank = membership_.rank,
                                              .size = membership_.size});
  }
}

Work CallCommunicator::Failed(absl::Status status) {
  auto completion = std::make_shared<Completion>([] { return std::string(); });
  completion->Finish(std::move(status));
  return Work(std::move(completion));
}

Work CallCommunicator::Refuse(const Operation& operation, absl::string_view why) const {
  return Failed(absl::InvalidArgumentError(absl::StrCat(ToString(operation.kind), " on rank ",
                                                        rank(), " of group ", group(), ": ", why)));
}

// The description is of a call that has its number, which it gets later.
absl::Status CallCommunicator::MakeCompletion(CallBuffers& buffers, Queue* queue, Call& call) {
  const Operation& operation = call.operation;
  auto description = [operation, group = group(), rank = rank()] {
    return absl::StrCat(Describe(operation, group), " on rank ", rank);
  };
  if (queue == nullptr || queue->device().host_reads()) {
    call.completion = std::make_shared<Completion>(std::move(description));
    return absl::OkStatus();
  }
  if (ReachesDevices()) {
    call.queue = queue;
    call.completion = call.on_stream =
        std::make_shared<StreamCompletion>(std::move(description), *queue);
    return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(call.completion, StagedCompletion::Make(std::move(description), operation,
                                                                  rank(), size(), *queue, buffers));
  return absl::OkStatus();
}

int64_t CallCommunicator::NextSequence(const Operation& operation) {
  return next_sequence_[CounterOf(operation)]++;
}

void CallCommunicator::Enter(const Operation& operation, MonoTime now, Call& call) {
  if (operation.is_collective()) {
    chain_ = ChainHash(chain_, operation);
    base::MutexLock issued_lock(issued_mu_);
    issued_[operation.sequence] = operation;
    num_issued_ = operation.sequence + 1;
    if (issued_.size() > kRememberedCalls) issued_.erase(issued_.begin());
  }
  if (membership_.ring == nullptr) return;
  call.ring = membership_.ring;
  call.tickets.push_back(membership_.ring->Record(ring_group_, operation, chain_, now));
  call.completion->ShowWaits(call.ring, call.tickets.back());
}

Work CallCommunicator::Issue(Operation operation, CallBuffers buffers,
                             std::optional<absl::Duration> timeout, Queue* queue) {
  if (membership_.family->capture.Captures()) {
    return IssueCaptured(operation, std::move(buffers), timeout, queue);
  }
  Call call;
  call.timeout = timeout.value_or(membership_.options.timeout);
  const MonoTime now = MonoNow();
  call.deadline = now + call.timeout;

  base::MutexLock lock(issue_mu_);
  operation.sequence = NextSequence(operation);
  call.operation = operation;
  if (const absl::Status made = MakeCompletion(buffers, queue, call); !made.ok()) {
    return Failed(made);
  }
  call.inputs = std::move(buffers.inputs);
  call.output = buffers.output;
  Enter(operation, now, call);
  Work work(call.completion);
  Start(std::move(call));
  return work;
}

// Its number is that of the next call, for messages, and not taken: the launches will have others.
Work CallCommunicator::IssueCaptured(const Operation& operation, CallBuffers buffers,
                                     std::optional<absl::Duration> timeout, Queue* queue) {
  CaptureState& capture = membership_.family->capture;
  const bool is_ordered = operation.is_reduction() && operation.order == SumOrder::kOrdered;
  const bool on_device = queue != nullptr && !queue->device().host_reads();
  if (!CapturesCalls() || is_ordered || !on_device) {
    return Failed(capture.Refuse(absl::FailedPreconditionError(absl::StrCat(
        Signature(operation), " on rank ", rank(), " of group ", group(),
        " cannot be captured with the work of a device: ",
        is_ordered ? "the host adds ordered sums" : "it has no queue of that device"))));
  }
  Call call = {.operation = operation,
               .captured = true,
               .timeout = timeout.value_or(membership_.options.timeout)};
  call.deadline = MonoNow() + call.timeout;
  base::MutexLock lock(issue_mu_);
  call.operation.sequence = next_sequence_[CounterOf(operation)];
  if (const absl::Status made = MakeCompletion(buffers, queue, call); !made.ok()) {
    return Failed(capture.Refuse(made));
  }
  call.inputs = std::move(buffers.inputs);
  call.output = buffers.output;
  capture.Add({.communicator = this,
               .operation = operation,
               .timeout = call.timeout,
               .completion = call.on_stream});
  Work work(call.completion);
  Start(std::move(call));
  return work;
}

void CallCommunicator::CallAgain(absl::Span<Operation> operations, MonoTime now, Call& call) {
  base::MutexLock lock(issue_mu_);
  for (Operation& operation : operations) {
    operation.sequence = NextSequence(operation);
    Enter(operation, now, call);
  }
  call.operation = operations.front();
}

void CallCommunicator::WatchLaunch(Call call, absl::Span<const Operation>) {
  call.Finish(absl::UnimplementedError("this backend launches nothing"));
}

absl::Status CallCommunicator::BeginCapture(Queue& queue) {
  if (!captures()) return Communicator::BeginCapture(queue);
  CaptureState& capture = membership_.family->capture;
  MUSTER_RETURN_IF_ERROR(capture.Begin());
  absl::Status begun = queue.device().BeginCapture(queue);
  if (!begun.ok()) capture.End();
  return begun;
}

// Every call is on its stream by then, and calls that nobody has waited for come back to the queue:
// the capture would be incomplete without them.
absl::StatusOr<std::unique_ptr<CapturedCalls>> CallCommunicator::EndCapture(Queue& queue) {
  CaptureState& capture = membership_.family->capture;
  std::vector<CapturedCall> calls = capture.calls();
  absl::Status failure = capture.refused();
  for (const CapturedCall& call : calls) failure.Update(call.completion->Await(queue));
  absl::StatusOr<std::unique_ptr<CapturedWork>> work = queue.device().EndCapture(queue);
  capture.End();
  MUSTER_RETURN_IF_ERROR(failure);
  MUSTER_RETURN_IF_ERROR(work.status());
  return MakeCapturedCalls(*std::move(work), std::move(calls));
}

absl::StatusOr<Registration> CallCommunicator::Register(Buffer memory) {
  const auto register_here = [&]() -> absl::StatusOr<Registration> {
    if (IsBad(memory.data, memory.count)) {
      return absl::InvalidArgumentError("the memory to register is not a valid buffer");
    }
    const bool has_use = size() > 1 && RegistersMemory() && memory.count > 0;
    return has_use ? RegisterHere(memory) : Registration();
  };
  if (size() == 1 || !RegistersMemory()) return register_here();
  if (membership_.family->capture.Captures()) {
    return absl::FailedPreconditionError("memory cannot be registered within a capture");
  }
  return RegisterOnAllRanks(*this, register_here);
}

absl::StatusOr<Registration> CallCommunicator::RegisterHere(Buffer) {
  return absl::UnimplementedError("this backend registers nothing");
}

Position CallCommunicator::PositionAt(int64_t sequence) {
  base::MutexLock lock(issued_mu_);
  Position out{.reached = sequence < num_issued_};
  const auto found = issued_.find(out.reached ? sequence : num_issued_ - 1);
  if (found != issued_.end()) out.operation = found->second;
  return out;
}

Work CallCommunicator::AllReduce(Buffer buffer, ReduceOptions options) {
  Operation op{.kind = OperationKind::kAllReduce, .reduce = options.op, .order = options.order};
  const ConstBuffer input = buffer;
  return Reduce(op, {&input, 1}, buffer, 1, options.timeout, options.queue);
}

Work CallCommunicator::ReduceScatter(ConstBuffer input, Buffer output, ReduceOptions options) {
  Operation op{.kind = OperationKind::kReduceScatter, .reduce = options.op, .order = options.order};
  return Reduce(op, {&input, 1}, output, size(), options.timeout, options.queue);
}

Work CallCommunicator::AllReduceSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                                         SubtreeOptions options) {
  Operation op{.kind = OperationKind::kAllReduce,
               .order = SumOrder::kOrdered,
               .leaves_per_rank = options.leaves_per_rank};
  return Reduce(op, roots, output, 1, options.timeout, options.queue);
}

Work CallCommunicator::ReduceScatterSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                                             SubtreeOptions options) {
  Operation op{.kind = OperationKind::kReduceScatter,
               .order = SumOrder::kOrdered,
               .leaves_per_rank = options.leaves_per_rank};
  return Reduce(op, roots, output, size(), options.timeout, options.queue);
}

Work CallCommunicator::Reduce(Operation op, absl::Span<const ConstBuffer> inputs, Buffer output,
                              int64_t blocks, std::optional<absl::Duration> timeout, Queue* queue) {
  constexpr int64_t kMaxLeaves = int64_t{1} << 32;
  if (op.leaves_per_rank < 1 || op.leaves_per_rank > kMaxLeaves) {
    return Refuse(op, absl::StrCat("leaves_per_rank is ", op.leaves_per_rank));
  }
  const LeafRange own{rank() * op.leaves_per_rank, (rank() + 1) * op.leaves_per_rank};
  const size_t num_roots = CoverWithSubtrees(own, size() * op.leaves_per_rank).size();
  if (inputs.size() != num_roots) {
    return Refuse(op, absl::StrCat(inputs.size(), " roots were passed, but leaves ", own.begin,
                                   " to ", own.end - 1, " of ", size() * op.leaves_per_rank,
                                   " are covered by ", num_roots, " subtrees"));
  }
  std::vector<const void*> pointers;
  for (const ConstBuffer& input : inputs) {
    if (std::string why = CheckBlocks(input, "input", output, "output", static_cast<int>(blocks));
        !why.empty()) {
      return Refuse(op, why);
    }
    pointers.push_back(input.data);
  }
  op.dtype = output.dtype;
  op.count = output.count;
  return Issue(op, {std::move(pointers), output.data}, timeout, queue);
}

Work CallCommunicator::AllGather(ConstBuffer input, Buffer output, CallOptions options) {
  Operation op{.kind = OperationKind::kAllGather, .dtype = input.dtype, .count = input.count};
  const std::string why = CheckBlocks(output, "output", input, "input", size());
  if (!why.empty()) return Refuse(op, why);
  return Issue(op, {{input.data}, output.data}, options.timeout, options.queue);
}

Work CallCommunicator::Broadcast(Buffer buffer, int root, CallOptions options) {
  Operation op{.kind = OperationKind::kBroadcast,
               .dtype = buffer.dtype,
               .peer = root,
               .count = buffer.count};
  if (IsBad(buffer.data, buffer.count)) return Refuse(op, "its buffer is not valid");
  if (root < 0 || root >= size()) {
    return Refuse(op, absl::StrCat("root ", root, " is not one of its ", size(), " ranks"));
  }
  return Issue(op, {{buffer.data}, buffer.data}, options.timeout, options.queue);
}

Work CallCommunicator::AllToAll(ConstBuffer input, Buffer output, CallOptions options) {
  Operation op{
      .kind = OperationKind::kAllToAll, .dtype = input.dtype, .count = input.count / size()};
  if (IsBad(input.data, input.count) || IsBad(output.data, output.count)) {
    return Refuse(op, "input or output is not a valid buffer");
  }
  if (input.dtype != output.dtype) return Refuse(op, TypeMismatch(input.dtype, output.dtype));
  if (output.count != input.count) {
    return Refuse(op, SizeMismatch("output", output.count, input.count));
  }
  if (input.count % size() != 0) {
    return Refuse(
        op, absl::StrCat(input.count, " elements cannot be cut into ", size(), " equal blocks"));
  }
  return Issue(op, {{input.data}, output.data}, options.timeout, options.queue);
}

Work CallCommunicator::Barrier(CallOptions options) {
  return Issue(Operation{.kind = OperationKind::kBarrier}, {}, options.timeout, options.queue);
}

Work CallCommunicator::Send(ConstBuffer buffer, int to, CallOptions options) {
  Operation op{
      .kind = OperationKind::kSend, .dtype = buffer.dtype, .peer = to, .count = buffer.count};
  if (IsBad(buffer.data, buffer.count)) return Refuse(op, "its buffer is not valid");
  if (to < 0 || to >= size() || to == rank()) {
    return Refuse(op, absl::StrCat("rank ", to, " is not one of its ", size() - 1, " peers"));
  }
  return Issue(op, {{buffer.data}, nullptr}, options.timeout, options.queue);
}

Work CallCommunicator::Recv(Buffer buffer, int from, CallOptions options) {
  Operation op{
      .kind = OperationKind::kRecv, .dtype = buffer.dtype, .peer = from, .count = buffer.count};
  if (IsBad(buffer.data, buffer.count)) return Refuse(op, "its buffer is not valid");
  if (from < 0 || from >= size() || from == rank()) {
    return Refuse(op, absl::StrCat("rank ", from, " is not one of its ", size() - 1, " peers"));
  }
  return Issue(op, {{}, buffer.data}, options.timeout, options.queue);
}

absl::StatusOr<std::unique_ptr<Communicator>> CallCommunicator::Split(std::optional<int> color,
                                                                      int key, std::string name) {
  if (color.has_value() && *color < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("split of group ", group(), " on rank ", rank(), ": colour ", *color,
                     " is negative; pass no colour to stay out of every group"));
  }
  int64_t split = 0;
  {
    base::MutexLock lock(issued_mu_);
    split = num_splits_++;
  }
  const std::array<int64_t, 2> mine = {color.value_or(-1), key};
  std::vector<int64_t> all(2 * size());
  MUSTER_RETURN_IF_ERROR(AllGather(ConstBufferOf(mine), BufferOf(all), {}).Wait());
  if (!color.has_value()) return nullptr;

  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (all[2 * r] == *color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&all](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
  Membership child = membership_;
  child.backend = {};
  child.group = name.empty() ? absl::StrCat(group(), ".", *color) : std::move(name);
  child.size = static_cast<int>(members.size());
  child.rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  const std::string path = absl::StrCat("split", split, ".", *color);
  child.group_id = HashOfPath(absl::StrCat(membership_.group_id, "/", path));
  return MakeChild(std::move(child), members, path);
}

}  // namespace muster::comm
