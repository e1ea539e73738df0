#include "worker_runtime/engine/travels.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/action_range.h"

namespace muster::engine {

using plan::Action;

// A communicator knows how many transfers there were, not which of the pipeline's one is.
absl::Status Travels::InWordsOfStages(const Action& action, absl::Status status) const {
  const auto* const transfer = action.If<plan::Transfer>();
  if (transfer == nullptr) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (in ", transfers_.NameOf(*transfer), ")"));
}

MonoTime Travels::Travel::FinishedAt() const {
  MonoTime last;
  for (const Work& work : works) last = std::max(last, work.FinishedAt());
  return last;
}

void Travels::Forget() {
  under_way_.clear();
  arrived_.clear();
}

void Travels::Start(int action) {
  const Action& a = rig_.program.actions[action];
  const ActionRange range(ToString(a.kind()));
  const auto* const reduce = a.If<plan::Reduce>();
  if (reduce && reduce->place != plan::kNone) rig_.held.ZeroUnwritten(reduce->bucket);
  Travel travel = {.action = action, .since = MonoNow()};
  if (const auto* const transfer = a.If<plan::Transfer>()) {
    travel.memory = transfers_.MemoryOf(*transfer);
    travel.works = transfers_.Start(*transfer, travel.memory);
  } else {
    travel.works = {rig_.reduction->Start(a)};
  }
  under_way_.push_back(std::move(travel));
}

void Travels::Launch(Work launched) {
  Forget();
  launched_ = std::move(launched);
}

absl::StatusOr<Travels::Times> Travels::Await(int action) {
  const auto found = std::find_if(under_way_.begin(), under_way_.end(),
                                  [&](const Travel& travel) { return travel.action == action; });
  MUSTER_CHECK(found != under_way_.end());
  const Action& a = rig_.program.actions[action];
  Times times = {.since = found->since, .wait_began = MonoNow()};
  {
    const ActionRange range(absl::StrCat("wait for ", ToString(a.kind())));
    for (const Work& work : found->works) {
      absl::Status status = work.Await(rig_.queue);
      if (!status.ok()) return InWordsOfStages(a, std::move(status));
    }
  }
  times.wait_ended = MonoNow();
  Travel travel = std::move(*found);
  under_way_.erase(found);
  // What was there at once has no end of its own, nor has what a device's queue still waits for.
  times.finished = std::clamp(travel.FinishedAt(), travel.since, times.wait_ended);
  if (const auto* const transfer = a.If<plan::Transfer>()) {
    transfers_.Finish(*transfer, std::exchange(travel.memory, {}));
  } else {
    rig_.reduction->Finish(a);
  }
  arrived_.push_back(std::move(travel));
  return times;
}

absl::Status Travels::AwaitOnHost() {
  MUSTER_RETURN_IF_ERROR(std::exchange(launched_, Work()).Wait());
  for (const Travel& travel : arrived_) {
    for (const Work& work : travel.works) MUSTER_RETURN_IF_ERROR(work.Wait());
  }
  return absl::OkStatus();
}

absl::Status Travels::AwaitRest() {
  absl::Status first_error = std::exchange(launched_, Work()).Wait();
  for (const Travel& travel : under_way_) {
    for (const Work& work : travel.works) first_error.Update(work.Wait());
  }
  under_way_.clear();
  return first_error;
}

absl::Duration Travels::TimeOfReductions() const {
  absl::Duration busy;
  MonoTime free_since;
  for (const Travel& travel : arrived_) {
    if (!rig_.program.actions[travel.action].If<plan::Reduce>()) continue;
    const MonoTime begin = std::max(travel.since, free_since);
    const MonoTime end = std::max(begin, travel.FinishedAt());
    busy += end - begin;
    free_since = end;
  }
  return busy;
}

}  // namespace muster::engine
