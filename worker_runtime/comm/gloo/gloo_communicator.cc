#include "worker_runtime/comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/gloo/collective_diagnosis.h"
#include "worker_runtime/comm/gloo/gloo_collectives.h"
#include "worker_runtime/comm/meeting.h"
#include "worker_runtime/comm/solo_communicator.h"

namespace muster::comm {
namespace {

absl::Duration QuestionDelay(int rank) { return absl::Milliseconds(std::min(rank, 300)); }

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> GlooCommunicator::Make(
    Membership membership, std::shared_ptr<GlooDevice> device, std::shared_ptr<Store> store,
    const std::string& prefix) {
  if (membership.size == 1) return MakeSoloCommunicator(std::move(membership));
  const MeshOptions options{.rank = membership.rank,
                            .size = membership.size,
                            .group = membership.group,
                            .prefix = prefix,
                            .deadline = MonoNow() + membership.options.connect_timeout,
                            .abort_switch = membership.abort_switch};
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<int> ranks_here,
      Meet(*store, {.rank = options.rank,
                    .size = options.size,
                    .group = options.group,
                    .prefix = prefix,
                    .machine = membership.options.shared_memory ? ThisMachine() : "",
                    .deadline = options.deadline}));
  MUSTER_ASSIGN_OR_RETURN(SharedMembers shared, ShareMemory(*store, options, ranks_here));
  MeshOptions data = options, control = options;
  data.prefix += "/data";
  control.prefix += "/control";
  MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<GlooMesh> mesh, GlooMesh::Create(device, store, data));
  Parts parts{.links = std::make_unique<Links>(std::move(mesh), std::move(shared)),
              .store = store,
              .prefix = prefix};
  MUSTER_ASSIGN_OR_RETURN(parts.control_mesh,
                          ConnectControl(std::move(device), std::move(store), control));
  std::unique_ptr<GlooCommunicator> communicator(
      new GlooCommunicator(std::move(membership), std::move(parts)));
  communicator->EnterSwitch();
  return communicator;
}

GlooCommunicator::GlooCommunicator(Membership membership, Parts parts)
    : CallCommunicator(std::move(membership)), parts_(std::move(parts)) {
  control_ = std::make_unique<ControlChannel>(
      *parts_.control_mesh,
      ControlSettings{
          .rank = rank(),
          .size = size(),
          .position = [this](int64_t sequence) { return PositionAt(sequence); },
          .on_failure =
              [this](absl::Status failure) { Fail(std::move(failure), TellPeers::kNo); }});
}

// Lanes end first, since they use everything else; then what was told leaves; then the thread that
// listens, which may call Fail until then.
GlooCommunicator::~GlooCommunicator() {
  LeaveSwitch();
  const bool had_failed = !failure_.Get().ok();
  Fail(ClosedError(rank(), size(), group()), TellPeers::kNo);
  std::map<std::pair<OperationKind, int>, std::unique_ptr<Lane>> lanes;
  {
    base::MutexLock lock(lanes_mu_);
    lanes.swap(lanes_);
  }
  for (const auto& [key, lane] : lanes) lane->wait_point().Interrupt();
  lanes.clear();
  if (had_failed) control_->Flush(MonoNow() + kControlFlushTime);
  control_.reset();
}

void GlooCommunicator::Abort(absl::string_view reason) {
  Fail(AbortError(rank(), size(), group(), reason), TellPeers::kYes);
}

int64_t GlooCommunicator::bytes_reserved() const {
  int64_t bytes = parts_.links->ring_bytes();
  base::MutexLock lock(lanes_mu_);
  for (const auto& [key, lane] : lanes_) bytes += lane->scratch().most();
  return bytes;
}

void GlooCommunicator::Fail(absl::Status failure, TellPeers tell) {
  if (!failure_.Set(failure)) return;
  if (tell == TellPeers::kYes) control_->Tell(failure);
  {
    base::MutexLock lock(lanes_mu_);
    failed_ = true;
    for (const auto& [key, lane] : lanes_) lane->wait_point().Interrupt();
  }
  parts_.links->Close();
}

Lane& GlooCommunicator::LaneOf(const Operation& op) {
  const std::pair<OperationKind, int> key =
      op.is_collective() ? std::pair(OperationKind::kBarrier, -1) : std::pair(op.kind, op.peer);
  base::MutexLock lock(lanes_mu_);
  std::unique_ptr<Lane>& lane = lanes_[key];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>([this](Lane& self, const Call& call) { Run(self, call); });
    if (failed_) lane->wait_point().Interrupt();
  }
  return *lane;
}

void GlooCommunicator::Start(Call call) {
  if (const absl::Status failure = failure_.Get(); !failure.ok()) return call.Finish(failure);
  if (LaneOf(call.operation).Push(call)) return;
  Fail(absl::ResourceExhaustedError(
           absl::StrCat("rank ", rank(), " of group ", group(), " has ", Lane::kMaxQueued,
                        " operations waiting; wait for some before calling more")),
       TellPeers::kYes);
  call.Finish(failure_.Get());
}

void GlooCommunicator::Run(Lane& lane, const Call& call) {
  if (const absl::Status failure = failure_.Get(); !failure.ok()) return call.Finish(failure);
  call.MarkStarted();
  DeadlineWatch& watch = *parts_.links->device()->watch;
  const DeadlineWatch::Entry expiry =
      watch.Add(call.deadline, [&lane] { lane.wait_point().Interrupt(); });
  std::optional<Exchange> exchange;
  exchange.emplace(*parts_.links, lane.wait_point(), lane.scratch(), call.operation);
  const absl::Status status = RunOnLane(*exchange, call);
  watch.Remove(expiry);
  if (!status.ok()) {
    Explain(call, status, exchange->lost_peer());
    // What is still in flight touches no memory once its connection is closed.
    parts_.links->Close();
    exchange.reset();
    return call.Finish(failure_.Get());
  }
  exchange.reset();
  // The deadline may have passed at the last moment; that is not to hit the next operation.
  lane.wait_point().Reset();
  if (!failure_.Get().ok()) lane.wait_point().Interrupt();
  call.Finish(absl::OkStatus());
}

absl::Status GlooCommunicator::RunOnLane(Exchange& exchange, const Call& call) {
  if (call.operation.is_collective()) return RunCollectiveOnLane(exchange, call);
  return call.operation.kind == OperationKind::kSend ? RunSend(exchange, call)
                                                     : RunRecv(exchange, call);
}

// Each rank shows its call to its right neighbour: where ranks disagree, at least one pair of
// neighbours does.
absl::Status GlooCommunicator::RunCollectiveOnLane(Exchange& exchange, const Call& call) {
  const CollectiveContext context{exchange, rank(), size()};
  MUSTER_RETURN_IF_ERROR(exchange.Reach(PeersOf(call.operation, rank(), size())));
  MUSTER_RETURN_IF_ERROR(exchange.ShowOperation(context.right(), context.left()));
  MUSTER_RETURN_IF_ERROR(RunCollective(context, call));
  MUSTER_RETURN_IF_ERROR(exchange.CheckNeighbour());
  return exchange.WaitForSends();
}

absl::Status GlooCommunicator::RunSend(Exchange& exchange, const Call& call) {
  const Operation& op = call.operation;
  MUSTER_RETURN_IF_ERROR(exchange.Reach({op.peer}));
  uint8_t* header = exchange.Scratch(kOperationWireBytes);
  Encode(op, header);
  MUSTER_RETURN_IF_ERROR(
      exchange.Send(SlotClass::kTransferHeader, op.peer, header, kOperationWireBytes));
  MUSTER_RETURN_IF_ERROR(exchange.Send(SlotClass::kTransfer, op.peer, call.inputs[0], op.bytes()));
  return exchange.WaitForSends();
}

absl::Status GlooCommunicator::RunRecv(Exchange& exchange, const Call& call) {
  const Operation& op = call.operation;
  MUSTER_RETURN_IF_ERROR(exchange.Reach({op.peer}));
  uint8_t* bytes = exchange.Scratch(kOperationWireBytes);
  MUSTER_ASSIGN_OR_RETURN(Transfer header, exchange.Receive(SlotClass::kTransferHeader, op.peer,
                                                            bytes, kOperationWireBytes));
  MUSTER_RETURN_IF_ERROR(exchange.Wait(header));
  MUSTER_ASSIGN_OR_RETURN(const Operation send, DecodeOperation(bytes));
  if (send.count != op.count || send.dtype != op.dtype) {
    return TransferMismatchError(group(), send, op.peer, op);
  }
  MUSTER_ASSIGN_OR_RETURN(Transfer data,
                          exchange.Receive(SlotClass::kTransfer, op.peer, call.output, op.bytes()));
  return exchange.Wait(data);
}

// A broken connection is rarely the reason itself: the peer that closed it has told why, or is
// about to. So its news are waited for before a sentence of our own is made.
void GlooCommunicator::Explain(const Call& call, const absl::Status& status, int lost_peer) {
  const Operation& op = call.operation;
  if (!failure_.Get().ok()) return;
  if (absl::IsUnavailable(status)) {
    if (!failure_.WaitFor(MonoNow() + kControlReasonTime).ok()) return;
    if (lost_peer < 0)
      return Fail(status, TellPeers::kYes);  // it says itself who could not be reached
    return Fail(GoneError(op, group(), lost_peer, size(), status.message()), TellPeers::kYes);
  }
  if (op.is_collective()) {
    // A deadline passes on all ranks at once; one of them is to ask, not all of them.
    if (!failure_.WaitFor(MonoNow() + QuestionDelay(rank())).ok()) return;
    return Fail(DiagnoseCollective(*control_,
                                   {.operation = op,
                                    .group = group(),
                                    .rank = rank(),
                                    .size = size(),
                                    .timeout = call.timeout},
                                   status),
                TellPeers::kYes);
  }
  if (absl::IsInvalidArgument(status)) return Fail(status, TellPeers::kYes);
  Fail(AbsentError(op, group(), {op.peer}, size(), call.timeout, ""), TellPeers::kYes);
}

absl::StatusOr<std::unique_ptr<Communicator>> GlooCommunicator::MakeChild(Membership child,
                                                                          const std::vector<int>&,
                                                                          const std::string& path) {
  return Make(std::move(child), parts_.links->device(), parts_.store,
              absl::StrCat(parts_.prefix, "/", path));
}

}  // namespace muster::comm
