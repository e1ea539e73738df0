#include "worker_runtime/comm/nccl/nccl_ranks.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::comm {
namespace {

constexpr int kRanksPerId = 256;
// How often a wait looks whether it is still wanted.
constexpr absl::Duration kLookAround = absl::Milliseconds(200);
constexpr auto kPollInterval = std::chrono::microseconds(100);

absl::StatusOr<std::string> WaitFor(Store& store, const std::string& key,
                                    const NcclRanksOptions& options) {
  while (true) {
    absl::StatusOr<std::string> value =
        store.Wait(key, Min(options.deadline, MonoNow() + kLookAround));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    MUSTER_RETURN_IF_ERROR(options.failure());
    if (options.deadline <= MonoNow()) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", options.rank, " of group ", options.group,
                       " got no NCCL id from its peers in time (", key, ")"));
    }
  }
}

absl::StatusOr<std::vector<ncclUniqueId>> ExchangeIds(const NcclLibrary& library, Store& store,
                                                      const NcclRanksOptions& options) {
  const int num_ids = library.comm_init_rank_scalable == nullptr
                          ? 1
                          : (options.size + kRanksPerId - 1) / kRanksPerId;
  std::vector<ncclUniqueId> ids(num_ids);
  for (int i = 0; i < num_ids; ++i) {
    if (options.rank != i * kRanksPerId) continue;
    const ncclResult_t result = library.get_unique_id(&ids[i]);
    MUSTER_RETURN_IF_ERROR(library.ToStatus(result, "making an id", nullptr));
    const std::string text =
        absl::BytesToHexString(absl::string_view(ids[i].internal, sizeof(ids[i].internal)));
    MUSTER_RETURN_IF_ERROR(
        store.Set(absl::StrCat(options.prefix, "/id", i), text, options.deadline));
  }
  for (int i = 0; i < num_ids; ++i) {
    if (options.rank == i * kRanksPerId) continue;
    const std::string key = absl::StrCat(options.prefix, "/id", i);
    MUSTER_ASSIGN_OR_RETURN(const std::string text, WaitFor(store, key, options));
    const std::string bytes = absl::HexStringToBytes(text);
    if (bytes.size() != sizeof(ids[i].internal)) {
      return absl::InternalError(
          absl::StrCat("the store's ", key, " is not an NCCL id: it has ", bytes.size(), " bytes"));
    }
    std::memcpy(ids[i].internal, bytes.data(), bytes.size());
  }
  return ids;
}

}  // namespace

NcclRanks::NcclRanks(std::shared_ptr<const NcclLibrary> library, ncclComm_t comm)
    : library_(std::move(library)), comm_(comm) {}

NcclRanks::~NcclRanks() { Abort(); }

absl::StatusOr<std::unique_ptr<NcclRanks>> NcclRanks::Connect(
    std::shared_ptr<const NcclLibrary> library, Store& store, const NcclRanksOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<ncclUniqueId> ids, ExchangeIds(*library, store, options));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      ids.size() > 1
          ? library->comm_init_rank_scalable(&comm, options.size, options.rank,
                                             static_cast<int>(ids.size()), ids.data(), &config)
          : library->comm_init_rank_config(&comm, options.size, ids[0], options.rank, &config);
  const absl::Status begun = library->ToStatus(
      result, absl::StrCat("connecting rank ", options.rank, " of group ", options.group), comm);
  std::unique_ptr<NcclRanks> ranks(new NcclRanks(std::move(library), comm));
  MUSTER_RETURN_IF_ERROR(begun);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_ready, ranks->IsReady());
    if (is_ready) return ranks;
    MUSTER_RETURN_IF_ERROR(options.failure());
    if (options.deadline <= MonoNow()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "NCCL did not connect the ", options.size, " ranks of group ", options.group,
          " in time, though all have come; NCCL_DEBUG=INFO says over which network it tries"));
    }
    std::this_thread::sleep_for(kPollInterval);  // NCCL offers nothing to wait for
  }
}

absl::StatusOr<bool> NcclRanks::IsReady() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library_->comm_get_async_error(comm_, &state);
  MUSTER_RETURN_IF_ERROR(library_->ToStatus(asked, "asking for the state", comm_));
  MUSTER_RETURN_IF_ERROR(library_->ToStatus(state, "an operation", comm_));
  return state == ncclSuccess;
}

void NcclRanks::Abort() {
  if (comm_ != nullptr) library_->comm_abort(std::exchange(comm_, nullptr));
}

void NcclRanks::Close(MonoTime deadline) {
  if (comm_ == nullptr) return;
  const ncclResult_t result = library_->comm_finalize(comm_);
  bool is_flushed = result == ncclSuccess;
  while (result == ncclInProgress && MonoNow() < deadline) {
    const absl::StatusOr<bool> ready = IsReady();
    is_flushed = ready.ok() && *ready;
    if (is_flushed || !ready.ok()) break;
    std::this_thread::sleep_for(kPollInterval);
  }
  if (!is_flushed) return Abort();
  library_->comm_destroy(std::exchange(comm_, nullptr));
}

}  // namespace muster::comm
