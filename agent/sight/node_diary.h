// What the agent writes into its diary, and when: what this node's time is spent on, its rounds and
// their workers, failures, what the watch says, and now and then how far the ranks are.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <string>

#include "agent/agent_options.h"
#include "agent/core/agent_phase.h"
#include "agent/process/lane.h"
#include "agent/sight/diary_file.h"
#include "agent/sight/job_diary.h"
#include "agent/watch/hang_watch.h"
#include "agent/workers/worker_roster.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "rendezvous/status/diary.h"

namespace muster::agent {

class NodeDiary {
 public:
  // What is kept a diary of; outlives this.
  struct Subject {
    const AgentOptions& options;
    const WorkerRoster& roster;
    const HangWatch& hang_watch;
  };
  NodeDiary(asio::io_context& loop, Lane files, Subject subject);

  // A run directory that is removed with the job gets no file.
  void Begin();
  // Time may be spent on something else than before.
  void TurnTo(NodePhase phase, bool is_starting);
  void NoteRound();
  // Counts a worker that runs; the last of the round makes an entry. `why_afresh` is for one that
  // is not the first attempt's.
  void NoteStart(int status::WorkerStarts::*how, const std::string& why_afresh);
  void NoteFailure(const WorkerFailure& failure);
  void NoteWatch(WatchEvent event, const std::string& text);
  void NoteSaid(Round round, const std::string& text);
  void End(const JobOutcome& outcome);
  // Calls `then` once all is written, or after two seconds.
  void Close(std::function<void()> then) { file_.Close(std::move(then)); }

  const JobDiary& diary() const { return diary_; }

 private:
  void AwaitNextSteps();
  void NoteSteps();

  const Subject subject_;
  DiaryFile file_;
  JobDiary diary_;
  status::WorkerStarts starts_;  // of this round, so far
  asio::steady_timer next_steps_;
};

}  // namespace muster::agent
