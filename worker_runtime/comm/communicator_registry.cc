#include "worker_runtime/comm/communicator_registry.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/agreed_backend.h"
#include "worker_runtime/comm/gloo/gloo_communicator.h"
#include "worker_runtime/comm/interface_choice.h"
#include "worker_runtime/comm/nccl/nccl_backend.h"
#include "worker_runtime/comm/solo_communicator.h"

namespace muster::comm {
namespace {

absl::Status RefuseLoopback(const BackendRequest& request) {
  return absl::InvalidArgumentError(absl::StrCat(
      "backend loopback joins threads of one process, but group ", request.membership.group,
      " has ", request.membership.size, " processes; use gloo or nccl"));
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeGloo(BackendRequest request) {
  MUSTER_ASSIGN_OR_RETURN(const InterfaceAddress chosen,
                          ChooseInterface({.gloo_interfaces = request.gloo_interfaces,
                                           .nccl_interfaces = request.nccl_interfaces,
                                           .master_addr = request.master_addr,
                                           .several_nodes = request.several_nodes},
                                          ListInterfaceAddresses()));
  MUSTER_ASSIGN_OR_RETURN(std::shared_ptr<GlooDevice> device,
                          OpenGlooDevice(chosen.address, chosen.interface));
  return GlooCommunicator::Make(std::move(request.membership), std::move(device),
                                std::move(request.store), request.prefix);
}

OwnBackend OwnOf(const std::string& asked, const BackendRequest& request) {
  OwnBackend own{.asked = asked};
  if (asked == kGloo) return own;
  if (asked.empty() && !request.gpu.has_value()) {
    own.hindrance = "has no GPU";
    return own;
  }
  if (const auto nccl = NameNccl(); !nccl.ok()) {
    own.hindrance = absl::StrCat("has no NCCL (", nccl.status().message(), ")");
  }
  const bool compares = asked.empty() || !request.nccl_tells_gpus_apart;
  if (request.gpu.has_value() && compares) own.gpu = request.gpu->uuid;
  return own;
}

absl::StatusOr<AgreedBackend> Agree(const std::string& asked, const BackendRequest& request) {
  const Membership& membership = request.membership;
  if (membership.size == 1) {
    return AgreedBackend{.name = asked.empty() ? kGloo : asked, .asked = asked};
  }
  return AgreeOnBackend(*request.store,
                        {.rank = membership.rank,
                         .size = membership.size,
                         .group = membership.group,
                         .prefix = absl::StrCat(request.prefix, "/backend"),
                         .deadline = MonoNow() + membership.options.connect_timeout},
                        OwnOf(asked, request));
}

}  // namespace

std::vector<std::string> BackendNames() { return {"loopback", kGloo, kNccl}; }

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& backend,
                                                               BackendRequest request) {
  const std::vector<std::string> names = BackendNames();
  if (!backend.empty() && !absl::c_linear_search(names, backend)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", backend, "' is not a communicator backend; expected ", absl::StrJoin(names, ", ")));
  }
  const bool is_alone = request.membership.size == 1;
  if (backend == "loopback" && !is_alone) return RefuseLoopback(request);
  MUSTER_ASSIGN_OR_RETURN(request.membership.backend, Agree(backend, request));
  if (request.membership.backend.name == kNccl) return MakeNcclCommunicator(std::move(request));
  request.former.reset();  // nothing of it is of use
  return is_alone ? MakeSoloCommunicator(std::move(request.membership))
                  : MakeGloo(std::move(request));
}

absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(BackendRequest request) {
  const auto* const former = dynamic_cast<const CallCommunicator*>(request.former.get());
  if (former == nullptr || former->agreed_backend().name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", request.membership.group, " is remade from ",
        request.former == nullptr ? "nothing" : "a communicator of Split's",
        "; pass one that MakeCommunicator made in an earlier round, and split the new one again"));
  }
  const std::string asked = former->agreed_backend().asked;
  return MakeCommunicator(asked, std::move(request));
}

}  // namespace muster::comm
