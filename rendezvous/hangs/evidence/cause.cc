#include "rendezvous/hangs/evidence/cause.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace muster::hangs {
namespace {

struct Words {
  absl::string_view name;
  absl::string_view words;
};

Words WordsOf(Cause cause) {
  switch (cause) {
    case Cause::kUnknown:
      return {"unknown", "not known"};
    case Cause::kNeverArrived:
      return {"never_arrived", "it does something else, and never arrived"};
    case Cause::kOtherOperation:
      return {"other_operation", "the ranks called different operations"};
    case Cause::kOtherSize:
      return {"other_size", "the ranks called it with different sizes"};
    case Cause::kReversedOrder:
      return {"reversed_order", "the ranks used their groups in different orders"};
    case Cause::kDeadPeer:
      return {"dead_peer", "a rank that others need has ended, or does not answer"};
    case Cause::kSlowLink:
      return {"slow_link", "the link between the ranks, or what carries it"};
    case Cause::kDataLoader:
      return {"data_loader", "it waits for its data"};
    case Cause::kLock:
      return {"lock", "it waits for a lock or for another thread"};
    case Cause::kStopped:
      return {"stopped", "it is stopped by a signal"};
    case Cause::kMemory:
      return {"memory", "its node has too little memory"};
    case Cause::kDisk:
      return {"disk", "it waits for a disk, a network file system or a device"};
  }
  return {"unknown", "not known"};
}

// Functions and files by which data loaders are known: PyTorch's, the runtime's, and what people
// call their own.
bool IsInDataLoader(const std::vector<std::string>& frames) {
  constexpr absl::string_view kNames[] = {"dataloader", "data_loader", "/torch/utils/data/",
                                          "muster::batchreader", "next_batch"};
  return std::any_of(frames.begin(), frames.end(), [&](const std::string& frame) {
    const std::string name = absl::AsciiStrToLower(frame);
    return std::any_of(std::begin(kNames), std::end(kNames),
                       [&](absl::string_view part) { return absl::StrContains(name, part); });
  });
}

Cause CauseOf(const RankReport& rank) {
  // A data loader comes before what the rank waits for in the kernel: a loader's pipe, lock or disk
  // is its data's.
  if (IsInDataLoader(rank.frames) || IsInDataLoader(rank.python)) return Cause::kDataLoader;
  switch (rank.hold) {
    case Hold::kLock:
      return Cause::kLock;
    case Hold::kDisk:
      return Cause::kDisk;
    case Hold::kMemory:
      return Cause::kMemory;
    case Hold::kUnknown:
      break;
  }
  return Cause::kNeverArrived;
}

}  // namespace

absl::string_view ToString(Cause cause) { return WordsOf(cause).name; }
absl::string_view InWords(Cause cause) { return WordsOf(cause).words; }

Cause CauseOf(Finding finding) {
  switch (finding) {
    case Finding::kNotCalled:
    case Finding::kSilent:
      return Cause::kNeverArrived;
    case Finding::kCircle:
      return Cause::kReversedOrder;
    case Finding::kEnded:
    case Finding::kNoReply:
      return Cause::kDeadPeer;
    case Finding::kStopped:
      return Cause::kStopped;
    case Finding::kFault:
    case Finding::kInside:
      return Cause::kSlowLink;
    case Finding::kNobodyWaits:
    case Finding::kMismatch:
    case Finding::kOutOfSight:
      break;
  }
  return Cause::kUnknown;
}

Cause RefineCause(const Diagnosis& diagnosis, const std::vector<RankReport>& ranks) {
  if (diagnosis.cause != Cause::kNeverArrived) return diagnosis.cause;
  for (const RankReport& rank : ranks) {
    if (!std::binary_search(diagnosis.culprits.begin(), diagnosis.culprits.end(), rank.rank)) {
      continue;
    }
    const Cause cause = CauseOf(rank);
    if (cause != Cause::kNeverArrived) return cause;
  }
  return diagnosis.cause;
}

}  // namespace muster::hangs
