#include "worker_runtime/plan/stage_handovers.h"

#include <utility>

namespace muster::plan {

StageHandovers::StageHandovers(ProgramDraft& draft)
    : draft_(draft), tied_(TiedOf(draft)), of_stage_(draft.input.stages.size()) {}

void StageHandovers::AddReceives(const PlannedPass& pass) {
  for (const HandedBy& from : pass.order.receives) {
    received_[from.what] = draft_.Add(ActionOf(/*is_send=*/false, from, BytesHanded(from.what)));
  }
}

void StageHandovers::AddNeeds(const PlannedPass& pass, Action& action) const {
  for (const Handed& needed : pass.order.needs) action.after.push_back(received_.at(needed));
}

void StageHandovers::AwaitSent(const PlannedPass& pass, Action& backward) {
  OfStage& own = of_stage_[draft_.stage];
  const auto passed_on = own.passed_on.find(pass.micro_batch());
  if (passed_on != own.passed_on.end()) backward.after.push_back(passed_on->second);
  for (const int sent : own.handed_back) {
    const int64_t bytes = draft_.program.actions[sent].keeps_bytes;
    backward.after.push_back(sent);
    backward.works_in_bytes -= bytes;
    backward.frees_bytes += bytes;
  }
  own.handed_back.clear();
}

void StageHandovers::KeepTied(const PlannedPass& pass, Action& backward) const {
  for (const TiedStages& tied : tied_) {
    if (draft_.PlaceOf(tied.lender) != draft_.PlaceOf(tied.borrower)) continue;
    if (pass.micro_batch() < tied.first_micro_batch) continue;
    const int64_t bytes = BytesHanded({Payload::kTied, tied.borrower, pass.micro_batch()});
    if (tied.borrower == draft_.stage) backward.keeps_bytes += bytes;
    if (tied.lender == draft_.stage) backward.frees_bytes += bytes;
  }
}

void StageHandovers::AddSends(const PlannedPass& pass, int action) {
  OfStage& own = of_stage_[draft_.stage];
  for (const HandedBy& to : pass.order.sends) {
    Action send = ActionOf(/*is_send=*/true, to, BytesHanded(to.what));
    send.after = {action};
    const int index = draft_.Add(std::move(send));
    if (to.what.payload == Payload::kActivation) {
      own.passed_on[pass.micro_batch()] = index;
    } else {
      own.handed_back.push_back(index);
    }
  }
}

void StageHandovers::AddTiedValues(const std::vector<int>& updates, int last_backward) {
  for (const TiedStages& tied : tied_) {
    const int lender = draft_.PlaceOf(tied.lender), borrower = draft_.PlaceOf(tied.borrower);
    if (lender != draft_.place || borrower == draft_.place) continue;
    Action send = TiedValues(/*is_send=*/true, tied, borrower);
    send.after = updates;
    draft_.Add(std::move(send));
  }
  for (const TiedStages& tied : tied_) {
    const int lender = draft_.PlaceOf(tied.lender), borrower = draft_.PlaceOf(tied.borrower);
    if (borrower != draft_.place || lender == draft_.place) continue;
    Action receive = TiedValues(/*is_send=*/false, tied, lender);
    receive.after = {last_backward};  // which read the old one
    draft_.Add(std::move(receive));
  }
}

Action StageHandovers::ActionOf(bool is_send, const HandedBy& with, int64_t bytes) const {
  Action action = {
      .body = Transfer{.is_send = is_send, .what = with.what, .place = with.place, .bytes = bytes}};
  // What is received stays for its pass; what is passed on is the tape's.
  if (!is_send || with.what.payload != Payload::kActivation) action.keeps_bytes = bytes;
  return action;
}

Action StageHandovers::TiedValues(bool is_send, const TiedStages& tied, int place) const {
  const int64_t bytes =
      draft_.BorrowedElements(tied.borrower) * BytesOf(draft_.input.types.parameters);
  Action action = ActionOf(is_send, {{Payload::kValue, tied.lender}, place}, bytes);
  action.frees_bytes = bytes;
  return action;
}

int64_t StageHandovers::BytesHanded(const Handed& what) const {
  switch (what.payload) {
    case Payload::kActivation:
      return draft_.input.stages[what.stage + 1].received_bytes;
    case Payload::kGradient:
      return draft_.input.stages[what.stage].received_bytes;
    default:
      return draft_.BorrowedElements(what.stage) * BytesOf(draft_.input.types.gradients);
  }
}

}  // namespace muster::plan
