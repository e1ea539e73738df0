#include "tests/unit/worker_runtime/comm/nccl/fake_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_cuda.h"

namespace muster::comm {
namespace {

using Kind = FakeCall::Kind;

FakeNccl* current = nullptr;

// The calls of this thread's open group.
struct OpenGroup {
  bool is_open = false;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<FakeCall> calls;
};
thread_local OpenGroup open_group;

const char* NameOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "system error";
    case ncclRemoteError:
      return "remote error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "another error";
  }
}

}  // namespace

FakeNccl::FakeNccl() { current = this; }
FakeNccl::~FakeNccl() { current = nullptr; }
FakeNccl& FakeNccl::Current() { return *current; }

std::shared_ptr<const NcclLibrary> FakeNccl::older_library() const {
  auto library = std::make_shared<NcclLibrary>();
  library->name = "NCCL 2.21.5";
  library->get_unique_id = [](ncclUniqueId* id) { return Current().GetUniqueId(id); };
  library->comm_init_rank_config = [](ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                      ncclConfig_t* config) {
    return Current().Init(comm, size, id, rank, config);
  };
  library->comm_finalize = [](ncclComm_t comm) { return Current().Finalize(comm); };
  library->comm_destroy = [](ncclComm_t comm) { return Current().End(comm, "destroy"); };
  library->comm_abort = [](ncclComm_t comm) { return Current().End(comm, "abort"); };
  library->comm_get_async_error = [](ncclComm_t comm, ncclResult_t* error) {
    return Current().GetAsyncError(comm, error);
  };
  library->all_reduce = [](const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return Current().Call(comm, {Kind::kAllReduce, input, output, count, type, op}, stream);
  };
  library->reduce_scatter = [](const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return Current().Call(comm, {Kind::kReduceScatter, input, output, count, type, op}, stream);
  };
  library->all_gather = [](const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return Current().Call(comm, {Kind::kAllGather, input, output, count, type}, stream);
  };
  library->broadcast = [](const void* input, void* output, size_t count, ncclDataType_t type,
                          int root, ncclComm_t comm, cudaStream_t stream) {
    return Current().Call(comm, {Kind::kBroadcast, input, output, count, type, ncclSum, root},
                          stream);
  };
  library->send = [](const void* input, size_t count, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
    return Current().Call(comm, {Kind::kSend, input, nullptr, count, type, ncclSum, peer}, stream);
  };
  library->recv = [](void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
    return Current().Call(comm, {Kind::kRecv, nullptr, output, count, type, ncclSum, peer}, stream);
  };
  library->comm_register = [](ncclComm_t comm, void* memory, size_t, void** handle) {
    return Current().Register(comm, memory, handle);
  };
  library->comm_deregister = [](ncclComm_t comm, void* handle) {
    return Current().Deregister(comm, handle);
  };
  library->group_start = [] { return Current().GroupStart(); };
  library->group_end = [] { return Current().GroupEnd(); };
  library->get_error_string = [](ncclResult_t result) { return NameOf(result); };
  library->get_last_error = [](ncclComm_t) { return ""; };
  return library;
}

std::shared_ptr<const NcclLibrary> FakeNccl::library() const {
  auto library = std::make_shared<NcclLibrary>(*older_library());
  library->name = "NCCL 2.30.7";
  library->comm_revoke = [](ncclComm_t comm, int flags) { return Current().Revoke(comm, flags); };
  library->comm_shrink = [](ncclComm_t comm, int* without, int num_without, ncclComm_t* child,
                            ncclConfig_t* config, int flags) {
    return Current().Shrink(comm, {without, without + num_without}, child, config, flags);
  };
  return library;
}

void FakeNccl::Destine(const std::string& function, int rank, Fate fate) {
  base::MutexLock lock(mu_);
  fates_[{function, rank}] = fate;
}

void FakeNccl::LoseConnection(int rank) {
  base::MutexLock lock(mu_);
  for (const auto& comm : comms_) {
    if (!comm->is_gone && comm->rank == rank) comm->error = ncclRemoteError;
  }
}

std::vector<std::string> FakeNccl::CallsOfThisThread() const {
  base::MutexLock lock(mu_);
  const auto found = calls_.find(std::this_thread::get_id());
  return found == calls_.end() ? std::vector<std::string>() : found->second;
}

void FakeNccl::CheckRules() const {
  base::MutexLock lock(mu_);
  EXPECT_THAT(broken_, ::testing::IsEmpty());
  for (const auto& comm : comms_) {
    EXPECT_TRUE(comm->is_gone) << comm->group << "/" << comm->rank << " was left behind";
  }
}

void FakeNccl::Break(const std::string& rule) { broken_.push_back(rule); }

FakeNccl::Fate FakeNccl::TakeFate(const std::string& function, int rank) {
  const auto found = fates_.find({function, rank});
  if (found == fates_.end()) return Fate::kWell;
  const Fate fate = found->second;
  fates_.erase(found);
  return fate;
}

FakeNccl::Comm* FakeNccl::Find(ncclComm_t comm, const std::string& function) {
  const auto found = std::find_if(comms_.begin(), comms_.end(), [comm](const auto& each) {
    return reinterpret_cast<ncclComm_t>(each.get()) == comm;
  });
  if (found == comms_.end()) {
    Break(function + " of what is no communicator");
    return nullptr;
  }
  const std::string name = absl::StrCat((*found)->group, "/", (*found)->rank, " ", function);
  if (function != "state" && function != "call") calls_[std::this_thread::get_id()].push_back(name);
  if ((*found)->is_gone) {
    Break(name + " after its end");
    return nullptr;
  }
  return found->get();
}

ncclComm_t FakeNccl::Add(Comm comm) {
  calls_[std::this_thread::get_id()].push_back(absl::StrCat(comm.group, "/", comm.rank, " init"));
  comms_.push_back(std::make_unique<Comm>(std::move(comm)));
  return reinterpret_cast<ncclComm_t>(comms_.back().get());
}

bool FakeNccl::HaveAllCome(const std::string& group) const {
  const Gathering& gathering = gatherings_.at(group);
  return gathering.arrived == gathering.size && !gathering.is_left;
}

ncclResult_t FakeNccl::GetUniqueId(ncclUniqueId* id) {
  base::MutexLock lock(mu_);
  constexpr int kLetters = 26;
  std::memset(id, 0, sizeof(*id));
  id->internal[0] = static_cast<char>('a' + num_ids_ % kLetters);
  if (num_ids_ >= kLetters) {
    const std::string number = absl::StrCat(num_ids_ / kLetters);
    std::memcpy(id->internal + 1, number.data(), number.size());
  }
  ++num_ids_;
  return ncclSuccess;
}

ncclResult_t FakeNccl::Init(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                            const ncclConfig_t* config) {
  base::MutexLock lock(mu_);
  if (config->blocking != 0) Break("a communicator that blocks");
  const std::string group(id.internal);
  Gathering& gathering = gatherings_[group];
  gathering.size = size;
  const Fate fate = TakeFate("init", rank);
  if (fate == Fate::kWell) ++gathering.arrived;
  *comm = Add({.group = group, .rank = rank, .size = size, .under_way = "init", .fate = fate});
  return ncclInProgress;
}

ncclResult_t FakeNccl::Revoke(ncclComm_t handle, int flags) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "revoke");
  if (comm == nullptr || flags != 0) return ncclInvalidArgument;
  if (comm->is_revoked || comm->is_finalized) {
    Break("a communicator is revoked twice, or once it is finalized");
    return ncclInvalidArgument;
  }
  Kill(*comm);
  comm->is_revoked = true;
  comm->under_way = "revoke";
  comm->fate = TakeFate("revoke", comm->rank);
  return ncclInProgress;
}

// The shrink is that of a communicator that does not block: it is under way, and says success.
ncclResult_t FakeNccl::Shrink(ncclComm_t handle, const std::vector<int>& without, ncclComm_t* child,
                              const ncclConfig_t* config, int flags) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "shrink");
  if (comm == nullptr) return ncclInvalidArgument;
  if (!comm->is_revoked || !comm->under_way.empty() || comm->error != ncclSuccess) {
    Break(absl::StrCat("shrink of ", comm->group, "/", comm->rank, ", which is not revoked"));
    return ncclInvalidArgument;
  }
  const bool is_in = std::count(without.begin(), without.end(), comm->rank) > 0;
  if (without.empty() || is_in || flags != 0 || config->blocking != 0) {
    Break(absl::StrCat("shrink without {", absl::StrJoin(without, ","), "} by ", comm->rank));
    return ncclInvalidArgument;
  }
  *child = nullptr;
  comm->under_way = "shrink";
  comm->fate = TakeFate("shrink", comm->rank);
  comm->child = child;
  comm->shrinks_to = absl::StrCat(comm->group, "-", absl::StrJoin(without, ","));
  children_[comm->group].insert(comm->shrinks_to);
  Gathering& gathering = gatherings_[comm->shrinks_to];
  gathering.size = comm->size - static_cast<int>(without.size());
  if (comm->fate == Fate::kWell) ++gathering.arrived;
  return ncclSuccess;
}

void FakeNccl::EndShrink(Comm& comm) {
  // NCCL ends nobody's wait then; here both lists are at hand.
  const bool differ = children_[comm.group].size() > 1;
  if (comm.fate == Fate::kWell && !differ && !HaveAllCome(comm.shrinks_to)) return;
  comm.under_way.clear();
  const bool fails = differ || comm.fate == Fate::kFails;
  if (fails) comm.error = differ ? ncclInvalidArgument : ncclSystemError;
  GiveChild(comm);
}

// The child may be one that has failed half-way.
void FakeNccl::GiveChild(Comm& comm) {
  const std::string text = comm.shrinks_to.substr(comm.group.size() + 1);
  const std::vector<std::string> without = absl::StrSplit(text, ',');
  int rank = comm.rank;
  for (const std::string& left_out : without) rank -= std::stoi(left_out) < comm.rank ? 1 : 0;
  *comm.child = Add({.group = comm.shrinks_to,
                     .rank = rank,
                     .size = comm.size - static_cast<int>(without.size()),
                     .error = comm.error});
}

void FakeNccl::GoOn(Comm& comm) {
  if (comm.under_way.empty() || comm.fate == Fate::kHangs) return;
  if (comm.under_way == "shrink") return EndShrink(comm);
  if (comm.under_way == "call" && !std::exchange(comm.was_asked, true)) return;
  if (comm.under_way == "init" && comm.fate == Fate::kWell && !HaveAllCome(comm.group)) return;
  const bool is_call = comm.under_way == "call";
  comm.under_way.clear();
  if (comm.fate == Fate::kFails) {
    comm.error = ncclSystemError;
  } else if (is_call) {
    PutCalls(comm);
  }
}

void FakeNccl::Kill(Comm& comm) {
  traffic_.Kill(comm.place());
  if (comm.under_way == "call") FakeCuda::Release(comm.stream);
}

void FakeNccl::PutCalls(Comm& comm) {
  FakeCuda::Put(comm.stream, [this, at = comm.place(), number = comm.num_calls++,
                              calls = std::move(comm.calls)] { traffic_.Run(at, number, calls); });
}

ncclResult_t FakeNccl::GroupStart() {
  open_group = {.is_open = true};
  return ncclSuccess;
}

ncclResult_t FakeNccl::Call(ncclComm_t handle, const FakeCall& call, cudaStream_t stream) {
  if (open_group.is_open) {
    open_group.comm = handle;
    open_group.stream = stream;
    open_group.calls.push_back(call);
    return ncclSuccess;
  }
  open_group = {.comm = handle, .stream = stream, .calls = {call}};
  return GroupEnd();
}

ncclResult_t FakeNccl::GroupEnd() {
  const OpenGroup group = std::exchange(open_group, {});
  base::MutexLock lock(mu_);
  Comm* const comm = Find(group.comm, "call");
  if (comm == nullptr) return ncclInvalidArgument;
  if (!comm->under_way.empty() || comm->is_revoked || comm->is_finalized) {
    Break("a call of a communicator that is revoked, finalized or not ready");
    return ncclInvalidUsage;
  }
  comm->under_way = "call";
  comm->fate = TakeFate("call", comm->rank);
  comm->calls = group.calls;
  comm->stream = group.stream;
  comm->was_asked = false;
  FakeCuda::Reserve(group.stream);
  return ncclInProgress;
}

ncclResult_t FakeNccl::GetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "state");
  if (comm == nullptr) return ncclInvalidArgument;
  GoOn(*comm);
  *error = comm->under_way.empty() ? comm->error : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t FakeNccl::Register(ncclComm_t handle, void* memory, void** registered) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "register");
  if (comm == nullptr || !comm->registered.insert(memory).second) return ncclInvalidArgument;
  if (!comm->under_way.empty()) Break("memory is registered while a call is under way");
  *registered = memory;
  return ncclSuccess;
}

ncclResult_t FakeNccl::Deregister(ncclComm_t handle, void* registered) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "deregister");
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->registered.erase(registered) == 0) Break("deregister of what is not registered");
  return ncclSuccess;
}

int FakeNccl::num_registered() const {
  base::MutexLock lock(mu_);
  size_t sum = 0;
  for (const auto& comm : comms_) sum += comm->is_gone ? 0 : comm->registered.size();
  return static_cast<int>(sum);
}

ncclResult_t FakeNccl::Finalize(ncclComm_t handle) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, "finalize");
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->is_revoked || comm->is_finalized || !comm->under_way.empty()) {
    Break("finalize of a communicator that is revoked, finalized or not ready");
    return ncclInvalidUsage;
  }
  comm->is_finalized = true;
  comm->under_way = "finalize";
  comm->fate = TakeFate("finalize", comm->rank);
  return ncclInProgress;
}

ncclResult_t FakeNccl::End(ncclComm_t handle, const std::string& function) {
  base::MutexLock lock(mu_);
  Comm* const comm = Find(handle, function);
  if (comm == nullptr) return ncclInvalidArgument;
  if (function == "destroy" && (!comm->is_finalized || !comm->under_way.empty())) {
    Break("destroy of a communicator that is not finalized");
  }
  if (comm->under_way == "shrink") {
    // The abort waits for the job, which gives out what it has come to.
    gatherings_[comm->shrinks_to].is_left = true;
    comm->error = ncclInternalError;
    GiveChild(*comm);
  }
  // A former one's bootstrap serves the others' shrinking.
  const bool has_shrunk =
      comm->under_way.empty() && !comm->shrinks_to.empty() && comm->error == ncclSuccess;
  for (const auto& other : comms_) {
    if (has_shrunk && !other->is_gone && other->shrinks_to == comm->shrinks_to &&
        other->under_way == "shrink") {
      Break(absl::StrCat(function, " of ", comm->group, "/", comm->rank, " while ", other->rank,
                         " shrinks"));
    }
  }
  comm->is_gone = true;
  Kill(*comm);
  return ncclSuccess;
}

}  // namespace muster::comm
