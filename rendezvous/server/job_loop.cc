#include "rendezvous/server/job_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/server/record_wire.h"
#include "rendezvous/status/make_page.h"

namespace muster::rendezvous {
namespace {

// While there are jobs the loop wakes this often, to tell a stall from having had nothing to do.
constexpr absl::Duration kStallWatch = absl::Milliseconds(500);
// A disk may take as long for a transaction before anybody is told of it.
constexpr absl::Duration kSlowCommit = absl::Seconds(1);

}  // namespace

JobLoop::JobLoop(asio::io_context& loop, JobTableOptions options, AnnounceSink announce,
                 std::unique_ptr<RecordKeeper> keeper)
    : mailbox_(loop),
      term_(options.term),
      lease_(options.lease),
      table_(std::move(options)),
      announce_(std::move(announce)),
      keeper_(std::move(keeper)),
      timer_(loop) {
  if (keeper_ != nullptr) {
    keeper_->Open({.on_durable =
                       [this](uint64_t ticket) {
                         Leave(gate_.OnDurable(ticket));
                         held_since_.reset();
                         if (gate_.num_held() > 0) held_since_ = MonoNow();
                       },
                   .on_trouble = [this](std::string why) { trouble_ = std::move(why); }});
    keeper_->Keep({}, gate_.Hold());
  }
}

void JobLoop::Restore(std::vector<KeptJob> jobs) {
  table_.Restore(std::move(jobs), Now());
  ArmTimerOnLoop();
}

void JobLoop::Attach(const AgentKey& key, Attendee* attendee) {
  Attendee* const before = std::exchange(attendees_[key], attendee);
  if (before != nullptr && before != attendee) before->Replaced();
}

void JobLoop::Detach(const AgentKey& key, Attendee* attendee) {
  const auto it = attendees_.find(key);
  if (it == attendees_.end() || it->second != attendee) return;
  attendees_.erase(it);
  Perform(inquiries_.OnGone(key));
  Perform(table_.OnDisconnect(key.job, key.agent, Now()));
}

void JobLoop::OnReport(const AgentKey& key, const AgentReport& report) {
  Perform(table_.OnReport(key.job, key.agent, report, Now()));
  TellNewcomer(key, report);
}

std::string JobLoop::WhatTheyWaitFor(const JobKey& job) {
  if (!held_since_ || !gate_.Holds(job)) return "";
  const absl::Duration held = MonoNow() - *held_since_;
  if (!trouble_.empty()) return absl::StrCat("the rendezvous cannot write its state: ", trouble_);
  if (held < kSlowCommit) return "";
  return absl::StrCat("the rendezvous has waited ",
                      absl::FormatDuration(absl::Trunc(held, absl::Seconds(1))),
                      " for the disk that it writes its state to");
}

// Its answer is held back. What it is told instead has a revision that any answer goes beyond.
void JobLoop::TellNewcomer(const AgentKey& key, const AgentReport& report) {
  if (report.phase != AgentPhase::kJoining || report.round != kNoRound) return;
  if (!gate_.is_term_durable()) return;
  const std::string why = WhatTheyWaitFor(key.job);
  if (why.empty()) return;
  Deliver(key, Directive{.term = term_,
                         .instance = report.instance,
                         .body = Refuse{absl::UnavailableError(
                             absl::StrCat("waiting: ", why, "; no round begins before it can"))}});
}

void JobLoop::OnStoreRequest(const AgentKey& key, const StoreRequest& request) {
  Perform(table_.OnStoreRequest(key.job, key.agent, request, Now()));
}

void JobLoop::OnWatchWord(const AgentKey& key, hangs::NodeWord word) {
  Perform(key.job, watches_.OnWord(table_, key.job, key.agent, std::move(word), Now()));
  ArmTimerOnLoop();
}

void JobLoop::OnStopRequest(const AgentKey& key, const StopRequest& request) {
  Perform(table_.OnStopRequest(key.job, key.agent, request, Now()));
}

void JobLoop::OnAgentEnded(const AgentKey& from, Incarnation ended) {
  Perform(table_.OnAgentEnded(from.job, {.from = from.agent, .agent = ended}, Now()));
}

void JobLoop::OnHostLeaving(const Departure& departure, const std::string& host_name) {
  Perform(table_.OnHostLeaving(departure, host_name, Now()));
}

void JobLoop::Perform(std::vector<JobTable::JobEffect> effects) {
  EffectGate::Passed passed = gate_.Push(std::move(effects));
  if (!passed.to_write.empty()) Keep(passed.to_write, passed.ticket);
  if (gate_.num_held() > 0 && !held_since_) held_since_ = MonoNow();
  Leave(passed.leaving);
  ArmTimerOnLoop();
}

void JobLoop::Keep(const std::vector<JobTable::JobEffect>& keeps, uint64_t ticket) {
  std::vector<KeptChange> changes;
  for (const JobTable::JobEffect& item : keeps) {
    const KeepJob& keep = std::get<KeepJob>(item.effect);
    KeptChange change{.key = item.job,
                      .instance = keep.instance,
                      .progress = EncodeProgress(keep.progress, Now())};
    if (keep.round) change.round = EncodeRound(*keep.round);
    // Its agents have close_timeout to learn how it ended, and as long again after a restart.
    if (keep.progress.phase == JobPhase::kEnded) {
      change.forget_after = 2 * keep.progress.settings->close_timeout;
    }
    if (keep.is_dropped) change.forget_after = absl::ZeroDuration();
    changes.push_back(std::move(change));
  }
  keeper_->Keep(std::move(changes), ticket);
}

void JobLoop::Leave(const std::vector<JobTable::JobEffect>& effects) {
  for (const JobTable::JobEffect& item : effects) {
    if (const auto* send = std::get_if<SendDirective>(&item.effect)) {
      Deliver({item.job, send->to}, send->directive);
    } else if (const auto* reply = std::get_if<SendStoreReply>(&item.effect)) {
      Deliver({item.job, reply->to}, reply->reply);
    } else if (const auto* send = std::get_if<SendAnswer>(&item.effect)) {
      Deliver({item.job, send->to}, send->answer);
    } else if (const auto* announce = std::get_if<Announce>(&item.effect); announce_ && announce) {
      announce_(item.job, *announce);
    }
  }
}

absl::Duration JobLoop::RenewInterval(const JobKey& job) const {
  const JobState* state = table_.FindState(job);
  return state == nullptr ? lease_.renew_interval : LeaseOf(lease_, *state).renew_interval;
}

template <typename Message>
void JobLoop::Deliver(const AgentKey& key, const Message& message) {
  const auto it = attendees_.find(key);
  if (it != attendees_.end()) it->second->Deliver(message);
}

void JobLoop::Perform(const JobKey& job, const hangs::JobWatch::Orders& orders) {
  for (const auto& order : orders) {
    if (const auto* to = std::get_if<hangs::OrderTo>(&order)) {
      Deliver({job, to->to}, to->order);
    } else {
      const auto& replace = std::get<hangs::ReplaceNodes>(order);
      Perform(table_.OnNodesAtFault(job, {replace.nodes, replace.why}, Now()));
    }
  }
}

void JobLoop::OnInquiry(const AgentKey& from, Inquiry inquiry) {
  const JobKey job{from.job.owner, inquiry.job.empty() ? from.job.run_id : inquiry.job};
  if (std::optional<InquiryAnswer> answer = AnswerInquiry(job, inquiry)) {
    answer->id = inquiry.id;
    Deliver(from, *answer);
    return;
  }
  Perform(inquiries_.OnInquiry(from, std::move(inquiry), job, MembersToAsk(job), Now()));
  ArmTimerOnLoop();
}

void JobLoop::OnInquiryReply(const AgentKey& from, InquiryReply reply) {
  Perform(inquiries_.OnReply(from, std::move(reply)));
}

std::optional<InquiryAnswer> JobLoop::AnswerInquiry(const JobKey& job, const Inquiry& inquiry) {
  if (inquiry.kind == InquiryKind::kJobs) {
    status::JobList list;
    for (const status::StatusPage& page : PagesOf(job.owner)) {
      list.jobs.push_back(status::LineOf(page));
    }
    return InquiryAnswer{.page = status::ToJson(list)};
  }
  if (inquiry.kind == InquiryKind::kWay) {
    return InquiryAnswer{.status = absl::InvalidArgumentError(
                             "a rendezvous that is asked for the way to it has been found")};
  }
  const std::optional<status::StatusPage> page = PageOf(job);
  if (!page) {
    return InquiryAnswer{
        .status = absl::NotFoundError(absl::StrCat("no job '", job.run_id, "' is known here"))};
  }
  if (inquiry.kind == InquiryKind::kStatus) return InquiryAnswer{.page = status::ToJson(*page)};
  return std::nullopt;
}

std::vector<status::StatusPage> JobLoop::PagesOf(const std::string& owner) {
  std::vector<status::StatusPage> pages;
  for (const JobKey& job : table_.JobsOf(owner)) {
    if (auto page = PageOf(job)) pages.push_back(*std::move(page));
  }
  return pages;
}

std::optional<status::StatusPage> JobLoop::PageOf(const JobKey& job) {
  if (const JobState* state = table_.FindState(job)) {
    status::StatusPage page = status::MakeStatusPage(
        job.run_id, *state, watches_.FindProgress(table_, job, Now()), Now());
    if (const std::string why = WhatTheyWaitFor(job); !why.empty()) {
      page.health = {.state = status::kWaiting,
                     .text = absl::StrCat(why, "; its nodes have not been told what is below"),
                     .for_seconds = absl::ToDoubleSeconds(MonoNow() - *held_since_)};
    }
    return page;
  }
  const JobOutcome* const outcome = table_.FindOutcome(job);
  if (outcome == nullptr) return std::nullopt;
  return status::MakeEndedPage(job.run_id, *outcome);
}

std::vector<status::InquiredNode> JobLoop::MembersToAsk(const JobKey& job) const {
  std::vector<status::InquiredNode> nodes;
  const JobState* const state = table_.FindState(job);
  if (state == nullptr || state->phase == JobPhase::kForming) return nodes;
  for (const Incarnation member : state->members) {
    const Assignment& assignment = state->assignments.at(member);
    const auto described = state->descriptions.find(member);
    const auto attendee = attendees_.find({job, member});
    status::InquiredNode node{
        .agent = member,
        .name = described == state->descriptions.end() ? "a node" : described->second.name,
        .first_rank = assignment.first_rank.value(),
        .num_ranks = assignment.local_world_size};
    if (attendee == attendees_.end()) {
      node.why_not = "its agent is not connected to the rendezvous";
    } else if (!attendee->second->AnswersInquiries()) {
      node.why_not = "its muster is too old to be asked";
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

void JobLoop::Perform(const status::InquiryDesk::Orders& orders) {
  for (const auto& order : orders) {
    if (const auto* ask = std::get_if<status::AskMember>(&order)) {
      Deliver(ask->to, ask->inquiry);
    } else {
      const auto& tell = std::get<status::TellAsker>(order);
      Deliver(tell.to, tell.answer);
    }
  }
}

// Nearly every message puts the next deadline off: a timer that fires too early is cheaper than one
// that is set again with each of them.
void JobLoop::ArmTimerOnLoop() {
  MonoTime due = clock_.ToReal(
      Min(table_.NextDeadline(), Min(watches_.NextDeadline(), inquiries_.NextDeadline())));
  if (table_.size() > 0) due = Min(due, MonoNow() + kStallWatch);
  clock_.Expect(due);
  if (armed_ <= due) return;
  armed_ = due;
  timer_.expires_at(
      std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(due.since_zero())));
  timer_.async_wait([this, mailbox = mailbox_](const asio::error_code& error) {
    if (error) return;
    mailbox.Post([this] {
      armed_ = MonoTime::InfiniteFuture();
      for (const auto& [job, orders] : watches_.Tick(table_, Now())) Perform(job, orders);
      Perform(inquiries_.Tick(Now()));
      Perform(table_.Tick(Now()));
    });
  });
}

}  // namespace muster::rendezvous
