// The ways to see from outside what goes on at an agent: its health, its part in what is asked
// about the job, its diary and its metrics.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/agent_options.h"
#include "agent/core/agent_core.h"
#include "agent/process/aside.h"
#include "agent/process/lane.h"
#include "agent/sight/agent_metrics.h"
#include "agent/sight/figures_reader.h"
#include "agent/sight/log_followers.h"
#include "agent/sight/metrics_door.h"
#include "agent/sight/node_diary.h"
#include "agent/sight/sight_desk.h"
#include "agent/watch/hang_watch.h"
#include "agent/workers/worker_roster.h"
#include "asio/io_context.hpp"
#include "proto/base/inquiry.h"
#include "proto/io/http_door.h"
#include "rendezvous/link/rendezvous_link.h"
#include "rendezvous/status/status_page.h"

namespace muster::agent {

class AgentSight {
 public:
  // What there is to see; all of it outlives this.
  struct Parts {
    const AgentOptions& options;
    const AgentCore& core;
    const WorkerRoster& roster;
    HangWatch& hang_watch;
    rendezvous::RendezvousLink& link;
    std::function<std::vector<std::string>()> kernel_lines;  // since the round began
  };
  AgentSight(asio::io_context& loop, Parts parts);

  NodeDiary& diary() { return diary_; }
  // Answered by the agent's own loop, so that one that hangs gives no answer.
  HttpDoor& health() { return health_; }
  MetricsDoor& metrics() { return metrics_; }
  SightDesk& desk() { return desk_; }
  LogFollowers& followers() { return followers_; }
  // Nobody is answered any more; the diary goes on.
  void Close();

 private:
  using TellPart = absl::AnyInvocable<void(InquiryPart)>;

  AgentSight(asio::io_context& loop, Parts parts, const Lane& files, const Lane& figures);
  SightSources MakeSources();
  status::StatusPage OwnPage(const std::string& why) const;
  void LookHere(const Inquiry& inquiry, TellPart then);
  void TellStacks(const Inquiry& inquiry, InquiryPart part, TellPart then);
  void TellLogs(const Inquiry& inquiry, InquiryPart part, TellPart then);
  void TellFigures(const Inquiry& inquiry, InquiryPart part, TellPart then);
  // Figures of the ranks, without a look at their processes.
  std::vector<status::RankFigures> RanksHere(std::optional<int> only) const;
  AgentFigures FiguresHere() const;

  const Parts parts_;
  NodeDiary diary_;
  HttpDoor health_;
  MetricsDoor metrics_;
  SightDesk desk_;
  Aside logs_;
  LogFollowers followers_;
  Aside figures_;
  std::shared_ptr<FiguresReader> reader_ = std::make_shared<FiguresReader>();
};

}  // namespace muster::agent
