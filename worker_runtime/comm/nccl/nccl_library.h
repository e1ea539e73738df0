// The NCCL library, opened at run time: a program built with it starts on a machine without NCCL,
// and says so only when it is asked for.
//
// Included in this folder alone: it brings in nccl.h and with it the CUDA headers.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::comm {

// NCCL's functions by their names. Constant after Open; the library stays loaded.
struct NcclLibrary {
  // libnccl.so.2 from where the dynamic loader looks, else the one of PyTorch's pip packages, else
  // the one that this program was built beside.
  //
  // Errors: kUnavailable: there is none, it is too old for communicators that do not block (2.14),
  //         or lacks a function.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Open();

  // Names `what` failed, NCCL's words for it, and its last message about `comm` (may be null).
  absl::Status ToStatus(ncclResult_t result, absl::string_view what, ncclComm_t comm) const;

  std::string name;  // as NameNccl

  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  // New in NCCL 2.23; null before.
  decltype(&::ncclCommInitRankScalable) comm_init_rank_scalable = nullptr;
  // Both new in NCCL 2.19; null before.
  decltype(&::ncclCommRegister) comm_register = nullptr;
  decltype(&::ncclCommDeregister) comm_deregister = nullptr;
  // New in NCCL 2.27.3 and 2.28.7; null before. Types are written out, since headers may be older.
  ncclResult_t (*comm_shrink)(ncclComm_t comm, int* without, int num_without, ncclComm_t* shrunk,
                              ncclConfig_t* config, int flags) = nullptr;
  ncclResult_t (*comm_revoke)(ncclComm_t comm, int flags) = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
};

}  // namespace muster::comm
