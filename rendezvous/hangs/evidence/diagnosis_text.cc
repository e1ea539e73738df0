// How a diagnosis reads.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::hangs {

std::string ToString(Finding finding) {
  switch (finding) {
    case Finding::kNobodyWaits:
      return "no rank waits";
    case Finding::kNotCalled:
      return "not called";
    case Finding::kMismatch:
      return "different operations";
    case Finding::kCircle:
      return "waiting in a circle";
    case Finding::kEnded:
      return "ended";
    case Finding::kStopped:
      return "stopped";
    case Finding::kNoReply:
      return "no reply";
    case Finding::kFault:
      return "fault";
    case Finding::kInside:
      return "inside the operation";
    case Finding::kSilent:
      return "silent";
    case Finding::kOutOfSight:
      return "out of sight";
  }
  return "?";
}

bool IsOfTheProgram(Finding finding) {
  return finding == Finding::kMismatch || finding == Finding::kCircle || finding == Finding::kEnded;
}

std::string NameOf(const Operation& operation) {
  return operation.name.empty() ? std::string(ToString(operation.kind)) : operation.name;
}

std::string InWords(const Operation& operation, const std::string& group) {
  std::string peer;
  if (group == kStoreGroup) return NameOf(operation);
  if (group == kRpcGroup) {
    return absl::StrCat(NameOf(operation),
                        operation.peer < 0 ? "" : absl::StrCat(" at rank ", operation.peer));
  }
  if (!operation.is_collective() && operation.peer < 0) {
    return absl::StrCat(NameOf(operation), " (group ", group, ")");
  }
  if (operation.kind == OperationKind::kSend) peer = absl::StrCat(" to rank ", operation.peer);
  if (operation.kind == OperationKind::kRecv) peer = absl::StrCat(" from rank ", operation.peer);
  if (group.empty()) return NameOf(operation);  // a gathering
  const bool has_size = operation.kind != OperationKind::kBarrier && !operation.dtype.empty();
  const std::string size =
      !has_size ? "" : absl::StrCat(", ", operation.bytes, " bytes ", operation.dtype);
  const std::string number =
      operation.sequence == kUnknownSequence ? "" : absl::StrCat(" #", operation.sequence);
  return absl::StrCat(NameOf(operation), number, peer, " (group ", group, size, ")");
}

std::string Diagnosis::Describe() const {
  if (finding == Finding::kNobodyWaits) return "no rank waits for another";
  const std::string what = operation ? hangs::InWords(*operation, group) : "an operation";
  const std::string who = RanksInWords(culprits);
  const std::string waiters =
      waiting.empty()
          ? ""
          : absl::StrCat(RanksInWords(waiting), waiting.size() == 1 ? " waits" : " wait");
  const bool is_one = culprits.size() == 1;
  std::string rest = waiters.empty() ? "" : absl::StrCat("; ", waiters);
  if (!is_direct && path.size() > 1 && !rest.empty()) {
    absl::StrAppend(&rest, " (", absl::StrJoin(path, ", "), ")");
  }
  if (finding == Finding::kOutOfSight && !words.empty()) return words;
  if (!words.empty()) return absl::StrCat(words, rest);
  switch (finding) {
    case Finding::kNotCalled:
      return absl::StrCat(who, is_one ? " has" : " have", " not called ", what, rest);
    case Finding::kMismatch:  // told by a server that gives no words
      return absl::StrCat(who, " called something else than ", what, rest);
    case Finding::kCircle:
      return absl::StrCat(who, " wait for each other in a circle: ", absl::StrJoin(path, ", "),
                          "; which of them is right cannot be told", rest);
    case Finding::kEnded:
      return absl::StrCat(who, is_one ? " has" : " have", " ended without calling ", what, rest);
    case Finding::kStopped:
      return absl::StrCat(who, is_one ? " is" : " are",
                          " stopped by a signal and cannot take part in ", what, rest);
    case Finding::kNoReply:
      return absl::StrCat(who, is_one ? " does" : " do", " not answer, and ", what, " waits for it",
                          rest);
    case Finding::kFault:
      return absl::StrCat(absl::StrJoin(spoke_for_it, "; "), "; ", what, " does not end", rest);
    case Finding::kSilent:
      return absl::StrCat(
          who, is_one ? " is" : " are",
          " the furthest behind; no rank moves, and none is seen to wait for another");
    case Finding::kInside:
      return absl::StrCat(what, " has been called by all of its ranks and does not end", rest);
    default:
      return absl::StrCat(waiters.empty() ? "ranks wait" : waiters, " in ", what,
                          " for ranks of which nothing is known here");
  }
}

}  // namespace muster::hangs
