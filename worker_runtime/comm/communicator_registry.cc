#include "worker_runtime/comm/communicator_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
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

}  // namespace

std::vector<std::string> BackendNames() { return {"loopback", "gloo", "nccl"}; }

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const std::string& backend,
                                                               BackendRequest request) {
  request.membership.backend = backend;
  if (backend != "nccl") request.former.reset();  // nothing of it is of use
  const bool is_alone = request.membership.size == 1;
  if (is_alone && (backend == "loopback" || backend == "gloo")) {
    return MakeSoloCommunicator(std::move(request.membership));
  }
  if (backend == "loopback") return RefuseLoopback(request);
  if (backend == "gloo") return MakeGloo(std::move(request));
  if (backend == "nccl") return MakeNcclCommunicator(std::move(request));
  return absl::InvalidArgumentError(absl::StrCat("'", backend,
                                                 "' is not a communicator backend; expected ",
                                                 absl::StrJoin(BackendNames(), ", ")));
}

absl::StatusOr<std::unique_ptr<Communicator>> RemakeCommunicator(BackendRequest request) {
  const auto* const former = dynamic_cast<const CallCommunicator*>(request.former.get());
  if (former == nullptr || former->backend().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", request.membership.group, " is remade from ",
        request.former == nullptr ? "nothing" : "a communicator of Split's",
        "; pass one that MakeCommunicator made in an earlier round, and split the new one again"));
  }
  const std::string backend = former->backend();
  return MakeCommunicator(backend, std::move(request));
}

}  // namespace muster::comm
