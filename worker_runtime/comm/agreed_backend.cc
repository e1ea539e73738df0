#include "worker_runtime/comm/agreed_backend.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"

namespace muster::comm {
namespace {

// GPUs that are named where many are shared.
constexpr size_t kNamedGpus = 2;

// A line each; the last may have more of them.
std::string Encode(const OwnBackend& own) {
  return absl::StrCat(own.asked, "\n", own.gpu, "\n", own.hindrance);
}

OwnBackend Decode(absl::string_view said) {
  const std::vector<std::string> parts = absl::StrSplit(said, absl::MaxSplits('\n', 2));
  if (parts.size() != 3) return {.hindrance = absl::StrCat("says '", said, "' of its back end")};
  return {.asked = parts[0], .gpu = parts[1], .hindrance = parts[2]};
}

// What hinders it, in words that follow "rank 3 "; empty: nothing.
std::string HindranceOf(const OwnBackend& own) {
  return own.asked == kGloo ? "was told gloo" : own.hindrance;
}

std::string DescribeShared(const std::map<std::string, std::vector<int>>& ranks_by_gpu, int size) {
  std::vector<std::string> shared;
  for (const auto& [gpu, ranks] : ranks_by_gpu) {
    if (ranks.size() > 1) shared.push_back(absl::StrCat(NameRanks(ranks, size), " share ", gpu));
  }
  if (shared.empty()) return "";
  if (shared.size() > kNamedGpus) {
    const size_t more = shared.size() - kNamedGpus;
    shared.resize(kNamedGpus);
    shared.push_back(absl::StrCat(more, more == 1 ? " more GPU is shared" : " more are shared"));
  }
  return absl::StrCat(
      absl::StrJoin(shared, ", "),
      ", and NCCL has one rank for each GPU, whatever parts MIG makes of it: start one worker for "
      "each GPU (--nproc_per_node=gpu), or let each see only its own (CUDA_VISIBLE_DEVICES, srun "
      "--gpus-per-task=1)");
}

// `why`: rank 0's WhyNotNccl. What a rank itself lacks for a back end that it was told, that says.
absl::StatusOr<AgreedBackend> Follow(const OwnBackend& own, const std::string& why) {
  if (own.asked == kNccl && !why.empty() && own.hindrance.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("backend nccl: ", why, "; backend gloo works on all ranks"));
  }
  AgreedBackend agreed{.name = why.empty() ? kNccl : kGloo, .asked = own.asked};
  if (!own.asked.empty()) {
    agreed.name = own.asked;
  } else if (!own.gpu.empty() && !why.empty()) {
    agreed.note = absl::StrCat("gloo instead of nccl: ", why);
  }
  return agreed;
}

}  // namespace

std::string WhyNotNccl(absl::Span<const OwnBackend> ranks) {
  std::map<std::string, std::vector<int>> ranks_by_gpu;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const std::string hindrance = HindranceOf(ranks[rank]);
    if (!hindrance.empty()) return absl::StrCat("rank ", rank, " ", hindrance);
    if (!ranks[rank].gpu.empty()) ranks_by_gpu[ranks[rank].gpu].push_back(rank);
  }
  return DescribeShared(ranks_by_gpu, static_cast<int>(ranks.size()));
}

absl::StatusOr<AgreedBackend> AgreeOnBackend(Store& store, const MeetingOptions& options,
                                             const OwnBackend& own) {
  if (const std::string hindrance = HindranceOf(own); !hindrance.empty()) {
    const std::string why = absl::StrCat("rank ", options.rank, " ", hindrance);
    MUSTER_RETURN_IF_ERROR(SayWithoutWaiting(store, options, Encode(own), why));
    return Follow(own, why);
  }
  const auto decide = [](absl::Span<const std::string> said) -> absl::StatusOr<std::string> {
    std::vector<OwnBackend> ranks;
    for (const std::string& one : said) ranks.push_back(Decode(one));
    return WhyNotNccl(ranks);
  };
  MUSTER_ASSIGN_OR_RETURN(const std::string why,
                          DecideTogether(store, options, Encode(own), decide));
  return Follow(own, why);
}

}  // namespace muster::comm
