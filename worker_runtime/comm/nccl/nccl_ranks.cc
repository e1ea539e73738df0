#include "worker_runtime/comm/nccl/nccl_ranks.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/store_wait.h"

namespace muster::comm {
namespace {

constexpr int kRanksPerId = 256;
constexpr auto kInitPollInterval = std::chrono::microseconds(100);
// NCCL_REVOKE_DEFAULT and NCCL_SHRINK_DEFAULT, which older headers lack.
constexpr int kRevokeDefault = 0;
constexpr int kShrinkDefault = 0;
constexpr char kRuns[] = "its NCCL communicator was not revoked";

absl::StatusOr<std::string> WaitForId(Store& store, const std::string& key,
                                      const NcclRanksOptions& options) {
  absl::StatusOr<std::string> value = WaitUnless(store, key, options.deadline, options.failure);
  if (!absl::IsDeadlineExceeded(value.status())) return value;
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", options.rank, " of group ", options.group,
                   " got no NCCL id from its peers in time (", key, ")"));
}

std::string TextOf(const ncclUniqueId& id) {
  return absl::BytesToHexString(absl::string_view(id.internal, sizeof(id.internal)));
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
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
    MUSTER_RETURN_IF_ERROR(
        store.Set(absl::StrCat(options.prefix, "/id", i), TextOf(ids[i]), options.deadline));
  }
  for (int i = 0; i < num_ids; ++i) {
    if (options.rank == i * kRanksPerId) continue;
    const std::string key = absl::StrCat(options.prefix, "/id", i);
    MUSTER_ASSIGN_OR_RETURN(const std::string text, WaitForId(store, key, options));
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

NcclRanks::NcclRanks(std::shared_ptr<const NcclLibrary> library, ncclComm_t comm, FormerPlace place)
    : library_(std::move(library)), comm_(comm), place_(std::move(place)) {}

NcclRanks::~NcclRanks() { Abort("it has ended"); }

FormerPlace NcclRanks::place() const { return place_; }

absl::StatusOr<std::unique_ptr<NcclRanks>> NcclRanks::Connect(
    std::shared_ptr<const NcclLibrary> library, Store& store, const NcclRanksOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<ncclUniqueId> ids, ExchangeIds(*library, store, options));
  ncclConfig_t config = NonBlocking();
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      ids.size() > 1
          ? library->comm_init_rank_scalable(&comm, options.size, options.rank,
                                             static_cast<int>(ids.size()), ids.data(), &config)
          : library->comm_init_rank_config(&comm, options.size, ids[0], options.rank, &config);
  const absl::Status begun = library->ToStatus(
      result, absl::StrCat("connecting rank ", options.rank, " of group ", options.group), comm);
  std::unique_ptr<NcclRanks> ranks(new NcclRanks(std::move(library), comm,
                                                 {.identity = TextOf(ids[0]),
                                                  .rank = options.rank,
                                                  .size = options.size,
                                                  .hindrance = kRuns}));
  MUSTER_RETURN_IF_ERROR(begun);
  MUSTER_RETURN_IF_ERROR(ranks->AwaitReady(
      options,
      absl::StrCat("NCCL did not connect the ", options.size, " ranks of group ", options.group,
                   " in time, though all have come; NCCL_DEBUG=INFO says over which "
                   "network it tries")));
  return ranks;
}

absl::StatusOr<std::unique_ptr<NcclRanks>> NcclRanks::Shrink(NcclRanks& former,
                                                             std::vector<int> without,
                                                             const NcclRanksOptions& options) {
  if (!former.place_.hindrance.empty()) {
    return absl::FailedPreconditionError(former.place_.hindrance);
  }
  FormerPlace place{
      .identity = absl::StrCat(former.place_.identity, "-", absl::StrJoin(without, ",")),
      .rank = options.rank,
      .size = options.size,
      .hindrance = kRuns};
  ncclConfig_t config = NonBlocking();
  // NCCL writes it from a thread of its own: until `former` is ready, or aborted.
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      former.library_->comm_shrink(former.comm_, without.data(), static_cast<int>(without.size()),
                                   &comm, &config, kShrinkDefault);
  const std::string late = absl::StrCat("NCCL did not shrink group ", options.group, " to its ",
                                        options.size, " ranks in time, though all have come");
  absl::Status status = former.library_->ToStatus(
      result, absl::StrCat("shrinking group ", options.group), former.comm_);
  if (status.ok()) status = former.AwaitReady(options, late);
  if (!status.ok()) former.Abort(status.message());
  std::unique_ptr<NcclRanks> ranks(new NcclRanks(former.library_, comm, std::move(place)));
  if (status.ok() && comm == nullptr) {
    status = absl::InternalError(absl::StrCat("NCCL shrank group ", options.group, " to nothing"));
  }
  if (status.ok()) status = ranks->AwaitReady(options, late);
  if (status.ok()) return ranks;
  former.Abort(status.message());
  return status;
}

absl::Status NcclRanks::AwaitReady(const NcclRanksOptions& options, absl::string_view late) const {
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_ready, IsReady());
    if (is_ready) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(options.failure());
    if (options.deadline <= MonoNow()) return absl::DeadlineExceededError(late);
    std::this_thread::sleep_for(kInitPollInterval);  // NCCL offers nothing to wait for
  }
}

absl::StatusOr<bool> NcclRanks::IsReady() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library_->comm_get_async_error(comm_, &state);
  MUSTER_RETURN_IF_ERROR(library_->ToStatus(asked, "asking for the state", comm_));
  MUSTER_RETURN_IF_ERROR(library_->ToStatus(state, "an operation", comm_));
  return state == ncclSuccess;
}

void NcclRanks::Abort(absl::string_view why) {
  if (comm_ == nullptr) return;
  library_->comm_abort(std::exchange(comm_, nullptr));
  place_.hindrance = std::string(why);
}

void NcclRanks::Revoke(MonoTime deadline) {
  if (comm_ == nullptr || place_.hindrance.empty()) return;
  if (const absl::Status quiet = AwaitQuiet(deadline); !quiet.ok()) return Abort(quiet.message());
  place_.hindrance.clear();
}

absl::Status NcclRanks::AwaitQuiet(MonoTime deadline) const {
  if (library_->comm_revoke == nullptr || library_->comm_shrink == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(library_->name, " has no ncclCommRevoke (2.28.7 and newer)"));
  }
  if (holds_memory_) return absl::FailedPreconditionError("memory was registered with it");
  const ncclResult_t result = library_->comm_revoke(comm_, kRevokeDefault);
  MUSTER_RETURN_IF_ERROR(library_->ToStatus(result, "revoking a communicator", comm_));
  return AwaitReady({.deadline = deadline, .failure = [] { return absl::OkStatus(); }},
                    "NCCL did not stop what ran on a communicator in time");
}

void NcclRanks::Close(MonoTime deadline) {
  if (comm_ == nullptr) return;
  if (place_.hindrance.empty()) return Abort("it has ended");  // a revoked one cannot be finalized
  const ncclResult_t result = library_->comm_finalize(comm_);
  bool is_flushed = result == ncclSuccess;
  while (result == ncclInProgress && MonoNow() < deadline) {
    const absl::StatusOr<bool> ready = IsReady();
    is_flushed = ready.ok() && *ready;
    if (is_flushed || !ready.ok()) break;
    std::this_thread::sleep_for(kInitPollInterval);
  }
  if (!is_flushed) return Abort("it has ended");
  library_->comm_destroy(std::exchange(comm_, nullptr));
}

}  // namespace muster::comm
