#include "worker_runtime/comm/nccl/nccl_library.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/optional_library.h"

namespace muster::comm {
namespace {

constexpr int kOldestVersion = 21400;  // the first with ncclConfig_t::blocking

absl::Status LoadFunctions(const OptionalLibrary& opened, NcclLibrary& out) {
  return opened.Load({{"ncclGetVersion", out.get_version},
                      {"ncclGetUniqueId", out.get_unique_id},
                      {"ncclCommInitRankConfig", out.comm_init_rank_config},
                      {"ncclCommInitRankScalable", out.comm_init_rank_scalable, MayLack::kYes},
                      {"ncclCommRegister", out.comm_register, MayLack::kYes},
                      {"ncclCommDeregister", out.comm_deregister, MayLack::kYes},
                      {"ncclCommShrink", out.comm_shrink, MayLack::kYes},
                      {"ncclCommRevoke", out.comm_revoke, MayLack::kYes},
                      {"ncclCommFinalize", out.comm_finalize},
                      {"ncclCommDestroy", out.comm_destroy},
                      {"ncclCommAbort", out.comm_abort},
                      {"ncclCommGetAsyncError", out.comm_get_async_error},
                      {"ncclGetErrorString", out.get_error_string},
                      {"ncclGetLastError", out.get_last_error},
                      {"ncclAllReduce", out.all_reduce},
                      {"ncclReduceScatter", out.reduce_scatter},
                      {"ncclAllGather", out.all_gather},
                      {"ncclBroadcast", out.broadcast},
                      {"ncclSend", out.send},
                      {"ncclRecv", out.recv},
                      {"ncclGroupStart", out.group_start},
                      {"ncclGroupEnd", out.group_end}});
}

// "2.19.3".
std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Open() {
  MUSTER_ASSIGN_OR_RETURN(
      const OptionalLibrary opened,
      OptionalLibrary::Open(
          {.name = "the NCCL library",
           .file_names = {"libnccl.so.2"},
           .folders = FoldersOfPackages(OwnPythonEnvironments(), {"nccl"}),
           .last_path = MUSTER_NCCL_LIBRARY_PATH,
           .advice = "install NCCL, add its folder to LD_LIBRARY_PATH, or use backend gloo"}));
  auto library = std::make_shared<NcclLibrary>();
  MUSTER_RETURN_IF_ERROR(LoadFunctions(opened, *library));
  int version = 0;
  if (library->get_version(&version) != ncclSuccess || version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("the NCCL library (", opened.path(), ") is version ",
                                               VersionText(version), "; it needs to be ",
                                               VersionText(kOldestVersion), " or newer"));
  }
  library->name = absl::StrCat("NCCL ", VersionText(version), " (", opened.path(), ")");
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

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
