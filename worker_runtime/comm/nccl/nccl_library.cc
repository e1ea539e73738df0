#include "worker_runtime/comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::comm {
namespace {

constexpr int kOldestVersion = 21400;  // the first with ncclConfig_t::blocking

// Names of functions that the library lacks.
std::vector<std::string> LoadFunctions(void* handle, NcclLibrary& out) {
  std::vector<std::string> missing;
  const auto load = [&](const char* name, auto& function) {
    void* const symbol = dlsym(handle, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    if (symbol == nullptr) missing.push_back(name);
  };
  load("ncclCommInitRankScalable", out.comm_init_rank_scalable);
  load("ncclCommRegister", out.comm_register);
  load("ncclCommDeregister", out.comm_deregister);
  load("ncclCommShrink", out.comm_shrink);
  load("ncclCommRevoke", out.comm_revoke);
  missing.clear();  // those may lack
  load("ncclGetVersion", out.get_version);
  load("ncclGetUniqueId", out.get_unique_id);
  load("ncclCommInitRankConfig", out.comm_init_rank_config);
  load("ncclCommFinalize", out.comm_finalize);
  load("ncclCommDestroy", out.comm_destroy);
  load("ncclCommAbort", out.comm_abort);
  load("ncclCommGetAsyncError", out.comm_get_async_error);
  load("ncclGetErrorString", out.get_error_string);
  load("ncclGetLastError", out.get_last_error);
  load("ncclAllReduce", out.all_reduce);
  load("ncclReduceScatter", out.reduce_scatter);
  load("ncclAllGather", out.all_gather);
  load("ncclBroadcast", out.broadcast);
  load("ncclSend", out.send);
  load("ncclRecv", out.recv);
  load("ncclGroupStart", out.group_start);
  load("ncclGroupEnd", out.group_end);
  return missing;
}

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Open() {
  void* handle = nullptr;
  std::string why;
  for (const char* path : {"libnccl.so.2", MUSTER_NCCL_LIBRARY_PATH}) {
    if (*path == '\0') continue;  // would be this program
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (handle == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("the NCCL library cannot be loaded: ", why,
                     "; install NCCL, add its folder to LD_LIBRARY_PATH, or use backend gloo"));
  }
  auto library = std::make_shared<NcclLibrary>();
  const std::vector<std::string> missing = LoadFunctions(handle, *library);
  if (!missing.empty()) {
    return absl::UnavailableError(absl::StrCat("the NCCL library lacks ",
                                               absl::StrJoin(missing, ", "), "; it needs to be ",
                                               VersionText(kOldestVersion), " or newer"));
  }
  if (library->get_version(&library->version) != ncclSuccess || library->version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("the NCCL library is version ",
                                               VersionText(library->version), "; it needs to be ",
                                               VersionText(kOldestVersion), " or newer"));
  }
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

std::string NcclLibrary::version_text() const { return VersionText(version); }

absl::Status NcclLibrary::ToStatus(ncclResult_t result, absl::string_view what,
                                   ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) {
    code = absl::StatusCode::kInvalidArgument;
  } else if (result == ncclRemoteError || result == ncclSystemError) {
    code = absl::StatusCode::kUnavailable;
  }
  const char* details = get_last_error(comm);
  return absl::Status(code, absl::StrCat(what, " failed in NCCL: ", get_error_string(result),
                                         details == nullptr || *details == '\0' ? "" : ": ",
                                         details == nullptr ? "" : details));
}

}  // namespace muster::comm
