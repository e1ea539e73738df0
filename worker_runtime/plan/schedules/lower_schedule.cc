#include "worker_runtime/plan/schedules/lower_schedule.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::plan {
namespace {

std::string NameOf(const Handover& what) {
  return absl::StrCat(what.kind == HandoverKind::kActivation ? "activation" : "gradient",
                      " of stage ", what.stage, ", micro-batch ", what.micro_batch);
}

// What one rank sends to another, in its order, and how much of it the other has asked for.
struct Channel {
  std::vector<Handover> sent;
  size_t received = 0;
};

}  // namespace

std::string ToString(const ScheduleStep& step) {
  if (const auto* pass = std::get_if<StagePass>(&step)) return ToString(*pass);
  if (const auto* send = std::get_if<SendStep>(&step)) {
    return absl::StrCat("SEND ", NameOf(send->what), " to rank ", send->to);
  }
  const auto& receive = std::get<ReceiveStep>(step);
  return absl::StrCat("RECV ", NameOf(receive.what), " from rank ", receive.from);
}

PassLinks LinksOf(const StagePass& pass, int num_stages) {
  PassLinks links;
  const bool has_before = pass.stage > 0;
  const bool has_behind = pass.stage + 1 < num_stages;
  switch (pass.kind) {
    case PassKind::kForward:
      links.needs = has_before;
      links.needed = {HandoverKind::kActivation, pass.stage - 1, pass.micro_batch};
      links.makes = has_behind;
      links.made = {HandoverKind::kActivation, pass.stage, pass.micro_batch};
      links.made_for = pass.stage + 1;
      break;
    case PassKind::kBackward:
    case PassKind::kInputGradient:
      links.needs = has_behind;
      links.needed = {HandoverKind::kGradient, pass.stage + 1, pass.micro_batch};
      links.makes = has_before;
      links.made = {HandoverKind::kGradient, pass.stage, pass.micro_batch};
      links.made_for = pass.stage - 1;
      break;
    case PassKind::kWeightGradient:
      break;
  }
  return links;
}

LoweredSchedule LowerSchedule(const Schedule& schedule) {
  std::map<std::pair<int, int>, Channel> channels;  // by (from, to)
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const StagePass& pass : schedule.passes[rank]) {
      const PassLinks links = LinksOf(pass, schedule.num_stages());
      if (!links.makes) continue;
      const int to = schedule.rank_of_stage[links.made_for];
      if (to != rank) channels[{rank, to}].sent.push_back(links.made);
    }
  }
  LoweredSchedule lowered(schedule.passes.size());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::vector<ScheduleStep>& steps = lowered[rank];
    std::map<Handover, bool> is_there;
    for (const StagePass& pass : schedule.passes[rank]) {
      const PassLinks links = LinksOf(pass, schedule.num_stages());
      const int from = links.needs ? schedule.rank_of_stage[links.needed.stage] : rank;
      if (from != rank) {
        Channel& channel = channels[{from, rank}];
        while (!is_there[links.needed] && channel.received < channel.sent.size()) {
          const Handover& what = channel.sent[channel.received++];
          steps.emplace_back(ReceiveStep{what, from});
          is_there[what] = true;
        }
      }
      steps.emplace_back(pass);
      if (!links.makes) continue;
      const int to = schedule.rank_of_stage[links.made_for];
      if (to != rank) steps.emplace_back(SendStep{links.made, to});
    }
  }
  return lowered;
}

}  // namespace muster::plan
