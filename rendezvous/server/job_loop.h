// The job table on an event loop: its timer, its clock, and who attends. Without gRPC; the agent in
// the same process attends through a LocalLink (local_link.h), others through AgentSessions
// (agent_sessions.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/inquiry.h"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/core/effect_gate.h"
#include "rendezvous/core/job_table.h"
#include "rendezvous/server/job_watches.h"
#include "rendezvous/server/record_keeper.h"
#include "rendezvous/server/stall_clock.h"
#include "rendezvous/status/inquiry_desk.h"
#include "rendezvous/status/status_page.h"

namespace muster::rendezvous {

// The way back to one agent, or to one person who asks. Deliver may only queue.
class Attendee {
 public:
  virtual ~Attendee() = default;
  virtual void Deliver(const Directive& directive) = 0;
  virtual void Deliver(const StoreReply& reply) = 0;
  virtual void Deliver(const hangs::WatchOrder& order) = 0;
  virtual void Deliver(const StopAnswer& answer) = 0;
  // Called only for an agent that AnswersInquiries.
  virtual void Deliver(const Inquiry& inquiry) = 0;
  virtual void Deliver(const InquiryAnswer& answer) = 0;
  virtual bool AnswersInquiries() const = 0;
  // A newer way to the same agent has taken this one's place.
  virtual void Replaced() = 0;
};

using AnnounceSink = std::function<void(const JobKey&, const Announce&)>;

// Loop thread only.
class JobLoop {
 public:
  // `loop` must outlive this.
  // With `keeper`, what is decided leaves once it is durable (EffectGate).
  JobLoop(asio::io_context& loop, JobTableOptions options, AnnounceSink announce,
          std::unique_ptr<RecordKeeper> keeper);
  ~JobLoop() { mailbox_.Close(); }
  JobLoop(const JobLoop&) = delete;
  JobLoop& operator=(const JobLoop&) = delete;

  // `attendee` must live until Detach or Replaced.
  void Attach(const AgentKey& key, Attendee* attendee);
  // Does nothing if another has taken its place.
  void Detach(const AgentKey& key, Attendee* attendee);
  void OnReport(const AgentKey& key, const AgentReport& report);
  void OnStoreRequest(const AgentKey& key, const StoreRequest& request);
  void OnWatchWord(const AgentKey& key, hangs::NodeWord word);
  // The request of a person, who attends under an incarnation of its own, once.
  void OnStopRequest(const AgentKey& key, const StopRequest& request);
  // The guardian of an agent that was killed says so, under an incarnation of its own, once.
  void OnAgentEnded(const AgentKey& from, Incarnation ended);
  void OnHostLeaving(const Departure& departure, const std::string& host_name);
  // An observer asks, or an agent for those at its socket. Answered by one InquiryAnswer.
  void OnInquiry(const AgentKey& from, Inquiry inquiry);
  // An agent has answered.
  void OnInquiryReply(const AgentKey& from, InquiryReply reply);
  // The agent of this process.
  void SetHost(Incarnation host) { table_.SetHost(host); }

  // See JobTable::Restore.
  void Restore(std::vector<KeptJob> jobs);

  const LeaseSettings& lease() const { return lease_; }
  // How often the nodes of a job are to renew their leases.
  absl::Duration RenewInterval(const JobKey& job) const;

  // The status of each job of `owner`.
  std::vector<status::StatusPage> PagesOf(const std::string& owner);

  const JobTable& table() const { return table_; }

 private:
  MonoTime Now() { return clock_.Now(MonoNow()); }
  // What a turn decided: kept first, where it is to be kept.
  void Perform(std::vector<JobTable::JobEffect> effects);
  void Keep(const std::vector<JobTable::JobEffect>& keeps, uint64_t ticket);
  void Leave(const std::vector<JobTable::JobEffect>& effects);
  template <typename Message>
  void Deliver(const AgentKey& key, const Message& message);
  void Perform(const JobKey& job, const hangs::JobWatch::Orders& orders);
  void Perform(const status::InquiryDesk::Orders& orders);
  // What the server answers by itself.
  std::optional<InquiryAnswer> AnswerInquiry(const JobKey& job, const Inquiry& inquiry);
  std::optional<status::StatusPage> PageOf(const JobKey& job);
  // What the newest decisions about `job` wait for, where they have waited for long; else empty.
  std::string WhatTheyWaitFor(const JobKey& job);
  void TellNewcomer(const AgentKey& key, const AgentReport& report);
  std::vector<status::InquiredNode> MembersToAsk(const JobKey& job) const;
  void ArmTimerOnLoop();

  const LoopMailbox mailbox_;
  const ServerTerm term_;
  const LeaseSettings lease_;
  JobTable table_;
  JobWatches watches_;
  status::InquiryDesk inquiries_;
  const AnnounceSink announce_;
  StallClock clock_;
  EffectGate gate_;
  std::optional<MonoTime> held_since_;          // what the gate holds; none: it holds nothing
  std::string trouble_;                         // of the keeper; empty: none
  const std::unique_ptr<RecordKeeper> keeper_;  // or null
  absl::btree_map<AgentKey, Attendee*> attendees_;
  asio::steady_timer timer_;
  MonoTime armed_ = MonoTime::InfiniteFuture();  // when it fires, by the machine's clock
};

}  // namespace muster::rendezvous
