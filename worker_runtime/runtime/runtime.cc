// A worker wakes: environment, agent, store, board; communicators are made over them.
#include "muster/runtime.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/environment.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "proto/spec/worker_env.h"
#include "worker_runtime/comm/communicator_registry.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/operation_ring.h"
#include "worker_runtime/runtime/agent_client.h"

namespace muster {
namespace {

constexpr absl::Duration kAgentTime = absl::Seconds(30);

// What lets NCCL have two ranks on one GPU: hosts that differ by name, or leave (2.30 and newer).
bool NcclIsToldOfSharedGpus(const std::map<std::string, std::string>& environment) {
  const std::string may_share = VariableOrEmpty(environment, "NCCL_MULTI_RANK_GPU_ENABLE");
  return !VariableOrEmpty(environment, "NCCL_HOSTID").empty() ||
         (!may_share.empty() && may_share != "0");
}

}  // namespace

struct Runtime::State {
  // Constant after construction.
  EnvironmentMap environment;
  WorkerEnv env;
  std::string gloo_interfaces;
  std::string nccl_interfaces;
  bool nccl_tells_gpus_apart = false;
  std::shared_ptr<Store> store;                     // communicators hold it too
  std::shared_ptr<AgentClient> agent;               // the store, where there is an agent
  std::shared_ptr<comm::OperationRing> operations;  // communicators write it too

  // The switch of all communicators, which hold it too.
  const std::shared_ptr<comm::AbortSwitch> abort_switch = std::make_shared<comm::AbortSwitch>();

  base::Mutex mu;
  bool survives ABSL_GUARDED_BY(mu) = false;
  std::map<std::string, int> num_communicators ABSL_GUARDED_BY(mu);  // by group

  // The request for the next communicator of all ranks that has this name.
  comm::BackendRequest NewRequest(const std::string& group, const CommunicatorOptions& options);
};

Runtime::Runtime(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runtime::~Runtime() = default;

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::FromEnvironment() {
  return FromEnvironment(EnvironmentOf(environ));
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::FromEnvironment(
    const std::map<std::string, std::string>& environment) {
  auto state = std::make_unique<State>();
  state->environment = environment;
  MUSTER_ASSIGN_OR_RETURN(state->env, DecodeWorkerEnv(environment));
  const WorkerEnv& env = state->env;
  const auto text_of = [&environment](const std::string& name) {
    return VariableOrEmpty(environment, name);
  };
  state->gloo_interfaces = text_of("GLOO_SOCKET_IFNAME");
  state->nccl_interfaces = text_of("NCCL_SOCKET_IFNAME");
  state->nccl_tells_gpus_apart = NcclIsToldOfSharedGpus(environment);
  if (env.board.empty()) {
    state->operations = std::make_shared<comm::OperationRing>();
  } else {
    MUSTER_ASSIGN_OR_RETURN(state->operations, comm::OperationRing::OpenBoard(env.board));
  }
  if (!env.agent_socket.empty()) {
    MUSTER_ASSIGN_OR_RETURN(state->agent, AgentClient::Connect({.socket_path = env.agent_socket,
                                                                .instance = env.instance,
                                                                .round = env.round,
                                                                .local_rank = env.local_rank},
                                                               MonoNow() + kAgentTime));
    state->store = state->agent;
  } else if (env.world_size > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "RANK=", ToString(env.rank), " and WORLD_SIZE=", env.world_size,
        " are set, but MUSTER_AGENT_SOCKET is not: the program was started by torchrun "
        "or by hand; start it with muster run"));
  } else {
    state->store = std::make_shared<comm::MemoryStore>();
  }
  return std::unique_ptr<Runtime>(new Runtime(std::move(state)));
}

int Runtime::rank() const { return state_->env.rank.value(); }
int Runtime::size() const { return state_->env.world_size; }
int Runtime::local_rank() const { return state_->env.local_rank.value(); }
int Runtime::local_size() const { return state_->env.local_world_size; }
int Runtime::num_nodes() const { return state_->env.num_nodes; }
int Runtime::restart_count() const { return state_->env.restart_count; }
const std::string& Runtime::run_id() const { return state_->env.run_id; }
Store& Runtime::store() { return *state_->store; }
void Runtime::SetProgress(int64_t step, Phase phase) {
  state_->operations->MarkProgress(step, phase);
}

comm::BackendRequest Runtime::State::NewRequest(const std::string& group,
                                                const CommunicatorOptions& options) {
  int count = 0;
  bool may_be_remade = false;
  {
    base::MutexLock lock(mu);
    count = num_communicators[group]++;
    may_be_remade = survives;
  }
  comm::BackendRequest request;
  request.membership = {.group = group,
                        .group_id = static_cast<uint32_t>(count),
                        .rank = env.rank.value(),
                        .size = env.world_size,
                        .options = options,
                        .ring = operations,
                        .abort_switch = abort_switch,
                        .may_be_remade = may_be_remade};
  request.store = store;
  request.prefix = absl::StrCat("comm/", group, "/", count);
  request.master_addr = env.master_addr;
  request.several_nodes = env.num_nodes > 1;
  request.gloo_interfaces = gloo_interfaces;
  request.nccl_interfaces = nccl_interfaces;
  request.local_rank = env.local_rank.value();
  if (options.device != nullptr) request.gpu = options.device->gpu();
  request.membership.options.device = nullptr;  // it may end before the communicator
  request.nccl_tells_gpus_apart = nccl_tells_gpus_apart;
  request.others_may_have_former = env.restart_count > 0;
  return request;
}

absl::StatusOr<std::unique_ptr<Communicator>> Runtime::MakeCommunicator(
    const std::string& group, const std::string& backend, CommunicatorOptions options) {
  return comm::MakeCommunicator(backend, state_->NewRequest(group, options));
}

absl::StatusOr<std::unique_ptr<Communicator>> Runtime::RemakeCommunicator(
    std::unique_ptr<Communicator> former, CommunicatorOptions options) {
  if (former == nullptr) return absl::InvalidArgumentError("there is no communicator to remake");
  comm::BackendRequest request = state_->NewRequest(former->group(), options);
  request.former = std::move(former);
  return comm::RemakeCommunicator(std::move(request));
}

CheckpointFence Runtime::checkpoint_fence() const {
  if (state_->agent == nullptr) return {};
  return {.instance = state_->env.instance.value(),
          .round = state_->env.round.value(),
          .commit = [agent = state_->agent](int64_t step) {
            const absl::Status status = agent->CommitCheckpoint(step, MonoNow() + kAgentTime);
            if (status.ok()) return status;
            return absl::IsAborted(status) ? absl::CancelledError(status.message())
                                           : absl::FailedPreconditionError(status.message());
          }};
}

absl::Status Runtime::CommitCheckpoint(int64_t step) {
  if (state_->agent == nullptr) return absl::OkStatus();
  return state_->agent->CommitCheckpoint(step, MonoNow() + kAgentTime);
}

bool Runtime::ShouldStop(int64_t step) {
  return state_->agent != nullptr && state_->agent->ShouldStop(step);
}

std::string Runtime::stop_reason() const {
  return state_->agent == nullptr ? "" : state_->agent->stop_reason();
}

void Runtime::SurviveRounds(std::function<void()> on_round_over) {
  if (state_->agent == nullptr) return;
  {
    base::MutexLock lock(state_->mu);
    state_->survives = true;
  }
  state_->agent->SurviveRounds([abort_switch = state_->abort_switch,
                                also = std::move(on_round_over)](const std::string& reason) {
    abort_switch->Throw(absl::StrCat("the round is over: ", reason));
    if (also) also();
  });
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::NextRound(absl::Duration patience) {
  {
    base::MutexLock lock(state_->mu);
    if (!state_->survives) {
      return absl::FailedPreconditionError(
          "this program has not said that it survives rounds (Runtime::SurviveRounds), or has no "
          "agent");
    }
  }
  MUSTER_ASSIGN_OR_RETURN(const EnvironmentMap environment,
                          state_->agent->AwaitRound(MonoNow() + patience));
  return FromEnvironment(environment);
}

const std::string* Runtime::variable(const std::string& name) const {
  return FindVariable(state_->environment, name);
}

absl::Status Runtime::Finish(int64_t step) {
  SetProgress(step, Phase::kEnd);
  if (state_->agent == nullptr) return absl::OkStatus();
  return state_->agent->SendGoodbye(step, MonoNow() + kAgentTime);
}

}  // namespace muster
