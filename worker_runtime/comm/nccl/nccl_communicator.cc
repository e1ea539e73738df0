#include "worker_runtime/comm/nccl/nccl_communicator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/backend.h"
#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/interface_choice.h"
#include "worker_runtime/comm/meeting.h"
#include "worker_runtime/comm/nccl/nccl_backend.h"
#include "worker_runtime/comm/nccl/nccl_registration.h"
#include "worker_runtime/comm/nccl/nccl_remake.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

constexpr std::pair<OperationKind, int> kCollectives = {OperationKind::kBarrier, -1};

absl::Status ForRank(const Membership& membership, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("backend nccl on rank ", membership.rank, " of group ",
                                   membership.group, ": ", status.message()));
}

// A process that names no GPU keeps its own, whatever its local rank has become: what it has there
// is of use only there.
absl::StatusOr<NcclContext> MakeContext(const BackendRequest& request,
                                        const NcclCommunicator* former) {
  NcclContext context{.store = request.store};
  if (request.gpu.has_value()) {
    context.device = request.gpu->number;
  } else if (former != nullptr) {
    context.device = former->context().device;
  } else {
    MUSTER_ASSIGN_OR_RETURN(context.device, ChooseDevice(request.local_rank));
  }
  MUSTER_ASSIGN_OR_RETURN(context.library, NcclLibrary::Open());
  const std::vector<InterfaceAddress> addresses = ListInterfaceAddresses();
  MUSTER_RETURN_IF_ERROR(CheckNcclInterfaces(request.nccl_interfaces, addresses));
  if (request.membership.size == 1) return context;
  MUSTER_ASSIGN_OR_RETURN(const InterfaceAddress chosen,
                          ChooseInterface({.gloo_interfaces = request.gloo_interfaces,
                                           .nccl_interfaces = request.nccl_interfaces,
                                           .master_addr = request.master_addr,
                                           .several_nodes = request.several_nodes},
                                          addresses));
  MUSTER_ASSIGN_OR_RETURN(context.control, OpenGlooDevice(chosen.address, chosen.interface));
  return context;
}

std::string RanksPrefix(const std::string& prefix) { return absl::StrCat(prefix, "/nccl"); }

// An ordered sum gathers whole contributions instead (NcclRun::PostOrdered).
int64_t BytesToSend(const Operation& op, int size) {
  if (!op.is_reduction() || op.order == SumOrder::kFast) return BytesOnARing(op, size);
  const int64_t blocks = op.kind == OperationKind::kReduceScatter ? size : 1;
  return (size - 1) * blocks * op.bytes() * MostContributions(size, op.leaves_per_rank);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(BackendRequest request) {
  auto* const former = dynamic_cast<NcclCommunicator*>(request.former.get());
  absl::StatusOr<NcclContext> context = MakeContext(request, former);
  if (!context.ok()) return ForRank(request.membership, context.status());
  const DeviceGuard guard(context->device);
  const bool stays = former != nullptr && former->context().device == context->device;
  std::unique_ptr<NcclRanks> left = stays ? former->GiveUp() : nullptr;
  request.former.reset();
  const Membership& membership = request.membership;
  if (membership.size > 1 && (left != nullptr || request.others_may_have_former)) {
    MUSTER_RETURN_IF_ERROR(
        SayWhatItWas(left.get(), *request.store,
                     {.rank = membership.rank,
                      .size = membership.size,
                      .prefix = RanksPrefix(request.prefix),
                      .deadline = MonoNow() + membership.options.connect_timeout}));
  }
  return NcclCommunicator::Make(std::move(request.membership), *std::move(context), request.prefix,
                                std::move(left));
}

absl::StatusOr<std::string> NameNccl() {
  MUSTER_ASSIGN_OR_RETURN(const std::shared_ptr<const NcclLibrary> library, NcclLibrary::Open());
  return library->name;
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Make(
    Membership membership, NcclContext context, const std::string& prefix,
    std::unique_ptr<NcclRanks> former) {
  std::unique_ptr<GlooMesh> mesh;
  if (membership.size > 1) {
    const MeshOptions options{.rank = membership.rank,
                              .size = membership.size,
                              .group = membership.group,
                              .prefix = absl::StrCat(prefix, "/control"),
                              .deadline = MonoNow() + membership.options.connect_timeout,
                              .abort_switch = membership.abort_switch};
    MUSTER_RETURN_IF_ERROR(Meet(*context.store, {.rank = options.rank,
                                                 .size = options.size,
                                                 .group = options.group,
                                                 .prefix = options.prefix,
                                                 .deadline = options.deadline})
                               .status());
    MUSTER_ASSIGN_OR_RETURN(mesh, ConnectControl(context.control, context.store, options));
  }
  std::unique_ptr<NcclCommunicator> communicator(
      new NcclCommunicator(std::move(membership), std::move(context), prefix, std::move(mesh)));
  communicator->EnterSwitch();  // what follows may wait for long
  const absl::Status connected = communicator->ConnectCollectives(std::move(former));
  if (!connected.ok()) return ForRank(communicator->membership(), connected);
  return communicator;
}

NcclCommunicator::NcclCommunicator(Membership membership, NcclContext context, std::string prefix,
                                   std::unique_ptr<GlooMesh> control_mesh)
    : CallCommunicator(std::move(membership)),
      context_(std::move(context)),
      prefix_(std::move(prefix)),
      control_mesh_(std::move(control_mesh)) {
  if (control_mesh_ == nullptr) return;
  control_ = std::make_unique<ControlChannel>(
      *control_mesh_,
      ControlSettings{
          .rank = rank(),
          .size = size(),
          .position = [this](int64_t sequence) { return PositionAt(sequence); },
          .on_failure =
              [this](absl::Status failure) { Fail(std::move(failure), TellPeers::kNo); }});
}

absl::Status NcclCommunicator::ConnectCollectives(std::unique_ptr<NcclRanks> former) {
  const DeviceGuard guard(context_.device);
  MUSTER_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Make());
  MUSTER_ASSIGN_OR_RETURN(
      std::unique_ptr<NcclRanks> ranks,
      ShrinkOrConnect(context_.library, std::move(former), *context_.store,
                      {.rank = rank(),
                       .size = size(),
                       .group = group(),
                       .prefix = RanksPrefix(prefix_),
                       .deadline = MonoNow() + membership().options.connect_timeout,
                       .failure = [this] { return failure_.Get(); }}));
  base::MutexLock lock(lanes_mu_);
  lanes_[kCollectives] = std::make_unique<NcclLane>(
      CollectiveLane(), owner(),
      std::shared_ptr<LaunchOrder>(membership().family, &membership().family->order),
      std::move(stream), std::move(ranks));
  return absl::OkStatus();
}

NcclCommunicator::~NcclCommunicator() { End(/*gives_up=*/false); }

std::unique_ptr<NcclRanks> NcclCommunicator::GiveUp() { return End(/*gives_up=*/true); }

std::unique_ptr<NcclRanks> NcclCommunicator::End(bool gives_up) {
  LeaveSwitch();
  registrations_.Close();
  const bool had_failed = !failure_.Get().ok();
  std::map<std::pair<OperationKind, int>, std::unique_ptr<NcclLane>> lanes;
  {
    base::MutexLock lock(lanes_mu_);
    lanes.swap(lanes_);
  }
  failure_.Set(ClosedError(rank(), size(), group()));
  std::unique_ptr<NcclRanks> left;
  for (const auto& [key, lane] : lanes) {
    if (!gives_up || key != kCollectives) lane->BeginClose();
  }
  if (gives_up) left = lanes.at(kCollectives)->GiveUp();
  lanes.clear();
  if (had_failed && control_ != nullptr) control_->Flush(MonoNow() + kControlFlushTime);
  control_.reset();
  return left;
}

void NcclCommunicator::Abort(absl::string_view reason) {
  Fail(AbortError(rank(), size(), group(), reason), TellPeers::kYes);
}

void NcclCommunicator::Fail(absl::Status failure, TellPeers tell) {
  {
    base::MutexLock lock(alive_mu_);
    if (!failure_.Set(failure)) return;
  }
  if (tell == TellPeers::kYes && control_ != nullptr) control_->Tell(failure);
  base::MutexLock lock(lanes_mu_);
  for (const auto& [key, lane] : lanes_) lane->Wake();
}

NcclLaneOptions NcclCommunicator::CollectiveLane() const {
  return {.device = context_.device,
          .rank = rank(),
          .size = size(),
          // A group that was split off is never a former one.
          .revokes = membership().may_be_remade && !backend().empty()};
}

// Two ranks, the sender first.
NcclLaneOptions NcclCommunicator::TransferLane(const Operation& op) {
  const bool sends = op.kind == OperationKind::kSend;
  NcclLaneOptions options = {
      .device = context_.device, .rank = sends ? 0 : 1, .size = 2, .peer = sends ? 1 : 0};
  const int from = sends ? rank() : op.peer, to = sends ? op.peer : rank();
  options.connect = [this, sends,
                     key = absl::StrCat(prefix_, "/from", from, "to", to)](MonoTime deadline) {
    return NcclRanks::Connect(context_.library, *context_.store,
                              {.rank = sends ? 0 : 1,
                               .size = 2,
                               .group = group(),
                               .prefix = key,
                               .deadline = deadline,
                               .failure = [this] { return failure_.Get(); }});
  };
  return options;
}

absl::StatusOr<NcclLane*> NcclCommunicator::LaneOf(const Operation& op) {
  const std::pair<OperationKind, int> key = CounterOf(op);
  base::MutexLock lock(lanes_mu_);
  std::unique_ptr<NcclLane>& lane = lanes_[key];
  if (lane == nullptr) {
    const DeviceGuard guard(context_.device);
    MUSTER_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Make());
    lane =
        std::make_unique<NcclLane>(TransferLane(op), owner(), nullptr, std::move(stream), nullptr);
  }
  return lane.get();
}

void NcclCommunicator::Start(Call call) {
  if (const absl::Status failure = failure_.Get(); !failure.ok()) return call.Finish(failure);
  if (call.captured && call.operation.kind == OperationKind::kBarrier) {
    return call.Finish(absl::FailedPreconditionError(
        "a barrier cannot be captured: it works in memory that a launch would not have"));
  }
  if (!call.captured) bytes_sent_ += BytesToSend(call.operation, size());
  PutInLane(std::move(call), &NcclLane::Push);
}

absl::Status NcclCommunicator::WhileAlive(absl::FunctionRef<absl::Status()> put) {
  base::MutexLock lock(alive_mu_);
  MUSTER_RETURN_IF_ERROR(failure_.Get());
  return put();
}

void NcclCommunicator::WatchLaunch(Call call, absl::Span<const Operation> operations) {
  for (const Operation& operation : operations) bytes_sent_ += BytesToSend(operation, size());
  PutInLane(std::move(call), &NcclLane::PushLaunch);
}

absl::StatusOr<Registration> NcclCommunicator::RegisterHere(Buffer memory) {
  if (!IsDeviceMemory(memory.data)) {
    return absl::InvalidArgumentError("the memory to register is not a GPU's");
  }
  MUSTER_ASSIGN_OR_RETURN(NcclLane* const lane, LaneOf({.kind = OperationKind::kBarrier}));
  void* handle = nullptr;
  MUSTER_RETURN_IF_ERROR(lane->RunBetweenCalls(
      "registering memory", [&handle, memory](NcclRanks& ranks) -> absl::Status {
        ranks.HoldsMemory();
        MUSTER_ASSIGN_OR_RETURN(handle, RegisterMemory(ranks.library(), ranks.get(), memory));
        return absl::OkStatus();
      }));
  return registrations_.Add([this, handle] { GiveUpRegistered(handle); });
}

// After a failure NCCL's communicator has gone, and its registrations with it. One that NCCL keeps
// would belong to the next owner of the memory.
void NcclCommunicator::GiveUpRegistered(void* handle) {
  const absl::StatusOr<NcclLane*> lane = LaneOf({.kind = OperationKind::kBarrier});
  const absl::Status status =
      lane.ok() ? (*lane)->RunBetweenCalls("giving up registered memory",
                                           [handle](NcclRanks& ranks) {
                                             return DeregisterMemory(ranks.library(), ranks.get(),
                                                                     handle);
                                           })
                : lane.status();
  if (!status.ok()) Fail(ForRank(membership(), status), TellPeers::kYes);
}

void NcclCommunicator::PutInLane(Call call, bool (NcclLane::*push)(Call& call)) {
  const absl::StatusOr<NcclLane*> lane = LaneOf(call.operation);
  if (lane.ok() && (*lane->*push)(call)) return;
  Fail(lane.ok() ? absl::ResourceExhaustedError(absl::StrCat(
                       "rank ", rank(), " of group ", group(), " has ", LaneQueue::kMaxQueued,
                       " operations waiting; wait for some before calling more"))
                 : lane.status(),
       TellPeers::kYes);
  call.Finish(failure_.Get());
}

StuckCollective NcclCommunicator::Stuck(const Call& call) const {
  return {.operation = call.operation,
          .group = group(),
          .rank = rank(),
          .size = size(),
          .timeout = call.timeout};
}

void NcclCommunicator::OnSuspicion(const Call& call) {
  if (control_ == nullptr || !call.operation.is_collective()) return;
  if (auto mismatch = FindMismatch(*control_, Stuck(call))) {
    Fail(*std::move(mismatch), TellPeers::kYes);
  }
}

void NcclCommunicator::OnTrouble(const Call& call, const absl::Status& why) {
  const Operation& op = call.operation;
  if (!failure_.Get().ok()) return;
  if (!absl::IsDeadlineExceeded(why)) {
    if (control_ != nullptr && !failure_.WaitFor(MonoNow() + kControlReasonTime).ok()) return;
    return Fail(absl::Status(why.code(), absl::StrCat(Describe(op, group()), " on rank ", rank(),
                                                      ": ", why.message())),
                TellPeers::kYes);
  }
  if (control_ != nullptr && op.is_collective()) {
    return Fail(DiagnoseCollective(*control_, Stuck(call), why), TellPeers::kYes);
  }
  if (!op.is_collective()) {
    return Fail(AbsentError(op, group(), {op.peer}, size(), call.timeout, ""), TellPeers::kYes);
  }
  Fail(absl::DeadlineExceededError(absl::StrCat(Describe(op, group()), " did not finish within ",
                                                absl::FormatDuration(call.timeout))),
       TellPeers::kYes);
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::MakeChild(Membership child,
                                                                          const std::vector<int>&,
                                                                          const std::string& path) {
  return Make(std::move(child), context_, absl::StrCat(prefix_, "/", path));
}

}  // namespace muster::comm
