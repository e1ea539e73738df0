#include "worker_runtime/comm/nccl/nccl_remake.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/shrink_agreement.h"

namespace muster::comm {
namespace {

ShrinkAgreementOptions AgreementOf(const NcclRanksOptions& options) {
  return {.rank = options.rank,
          .size = options.size,
          .group = options.group,
          .prefix = absl::StrCat(options.prefix, "/former"),
          .deadline = options.deadline,
          .failure = options.failure};
}

// Shrinks the former ranks if all of them can; null: the ranks connect instead.
absl::StatusOr<std::unique_ptr<NcclRanks>> ShrinkIfAllCan(NcclRanks* former, Store& store,
                                                          const NcclRanksOptions& options) {
  ShrinkAgreement agreement(store, AgreementOf(options));
  MUSTER_ASSIGN_OR_RETURN(const ShrinkDecision decision, agreement.Decide(former != nullptr));
  if (former == nullptr || !decision.shrinks()) return nullptr;
  NcclRanksOptions shrinking = options;
  const MonoTime now = MonoNow();
  shrinking.deadline = now + (options.deadline - now) / 2;
  shrinking.failure = [&]() -> absl::Status {
    MUSTER_RETURN_IF_ERROR(options.failure());
    return agreement.GivenUp();
  };
  absl::StatusOr<std::unique_ptr<NcclRanks>> shrunk =
      NcclRanks::Shrink(*former, decision.without, shrinking);
  MUSTER_ASSIGN_OR_RETURN(const bool all_have, agreement.Conclude(shrunk.status()));
  if (!all_have) return nullptr;
  return shrunk;
}

}  // namespace

absl::Status SayWhatItWas(const NcclRanks* former, Store& store, const NcclRanksOptions& options) {
  std::optional<FormerPlace> place;
  if (former != nullptr) place = former->place();
  return ShrinkAgreement(store, AgreementOf(options)).Say(place);
}

absl::StatusOr<std::unique_ptr<NcclRanks>> ShrinkOrConnect(
    std::shared_ptr<const NcclLibrary> library, std::unique_ptr<NcclRanks> former, Store& store,
    const NcclRanksOptions& options) {
  if (options.size > 1) {
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<NcclRanks> shrunk,
                            ShrinkIfAllCan(former.get(), store, options));
    if (shrunk != nullptr) return shrunk;
  }
  former.reset();  // makes room in the device's memory
  return NcclRanks::Connect(std::move(library), store, options);
}

}  // namespace muster::comm
